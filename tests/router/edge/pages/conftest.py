"""Databases as the store's tests have them."""

from tests.router.store.conftest import home, postgres, url

__all__ = ["home", "postgres", "url"]
