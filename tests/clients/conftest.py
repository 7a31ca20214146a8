"""Fixtures of clients."""

from tests.serving.conftest import dead, gateway

__all__ = ["dead", "gateway"]
