"""Baselines: simpler ways to answer questions and to fill tables, with which role-factorized search
is compared.
"""
