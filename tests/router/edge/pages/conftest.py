"""Fixtures for databases, shared with the store's tests."""

from tests.router.store.conftest import home, postgres, url

__all__ = ["home", "postgres", "url"]
