"""Python client of a rolegate gateway. It requires only grpcio and googleapis-common-protos."""

from rolegate.client.async_client import AsyncClient, AsyncStream
from rolegate.client.client import Client, Stream
from rolegate.client.connection import Access, Connection
from rolegate.client.gateway_error import GatewayError
from rolegate.client.table import Table

__all__ = [
    "Access",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "Connection",
    "GatewayError",
    "Stream",
    "Table",
]
