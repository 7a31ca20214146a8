"""Baselines with which the gateway's search is compared: simpler ways to answer questions and to
fill tables.
"""
