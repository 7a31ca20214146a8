"""Checks that nothing is lost, late or booked wrongly while upstreams fail and gateways die."""
