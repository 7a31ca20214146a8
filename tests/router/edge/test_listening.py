"""Which addresses are this machine's alone."""

import pytest

from router.edge.listening import is_loopback


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.1.2.3:0", "localhost"]
)
def test_the_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:1", "[::]:1", ":1", "192.168.0.2:1", "gateway.example:1", "8080", ""]
)
def test_everything_else(address: str) -> None:
    """Also names, which may lead anywhere."""
    assert not is_loopback(address)
