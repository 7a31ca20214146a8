"""Tests whether anything is lost, late or booked wrongly while upstreams fail and gateways are
killed.
"""
