"""Which addresses are loopback addresses."""

import pytest
from rolegate.client.connection import is_loopback


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.1.2.3:0", "localhost"]
)
def test_loopback_addresses_are_recognised(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:1", "[::]:1", ":1", "192.168.0.2:1", "gateway.example:1", "8080", ""]
)
def test_other_addresses_and_names_are_not_loopback(address: str) -> None:
    """A name may resolve to any address."""
    assert not is_loopback(address)
