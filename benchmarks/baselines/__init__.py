"""Baselines for role-factorized search: simpler ways to answer questions and to fill tables."""
