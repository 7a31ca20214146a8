"""From our errors to OpenAI's error shape, by the table of `router.edge.status`."""

import math

import msgspec
from aiohttp import web
from google.rpc import code_pb2

from router.edge.status import logged_status, reason_of, retry_after_s

HTTP_STATUS = {
    code_pb2.INVALID_ARGUMENT: 400,
    code_pb2.FAILED_PRECONDITION: 400,
    code_pb2.UNAUTHENTICATED: 401,
    code_pb2.PERMISSION_DENIED: 403,
    code_pb2.NOT_FOUND: 404,
    code_pb2.ALREADY_EXISTS: 409,
    code_pb2.ABORTED: 409,
    code_pb2.RESOURCE_EXHAUSTED: 429,
    code_pb2.CANCELLED: 499,
    code_pb2.INTERNAL: 500,
    code_pb2.UNAVAILABLE: 503,
    code_pb2.DEADLINE_EXCEEDED: 504,
}
"""As `google/rpc/code.proto` maps them."""


class Failure(msgspec.Struct, frozen=True):
    """What went wrong, for people (`message`) and for programs."""

    message: str
    type: str
    param: str | None
    """The field of the request that is wrong, where one is known."""
    code: str


def failure(status: int, message: str, code: str, param: str | None = None) -> dict[str, Failure]:
    """The body that goes with an HTTP status."""
    return {"error": Failure(message, "server_error" if status >= 500 else "invalid_request_error", param, code)}


def failed(error: Exception) -> tuple[int, dict[str, Failure]]:
    """Status and body for what a request raised, which is logged."""
    status = logged_status(error)
    number = HTTP_STATUS[status.code]
    return number, failure(number, status.message, reason_of(status))


def refused(error: Exception) -> web.Response:
    """The whole response to a request that raised `error`; it says when to come back where the error does."""
    number, body = failed(error)
    wait_s = retry_after_s(error)
    headers = {"Retry-After": str(math.ceil(wait_s))} if number in (429, 503) and wait_s is not None else {}
    if number == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(number, body, headers)


def json_response(status: int, content: object, headers: dict[str, str] | None = None) -> web.Response:
    """A response of JSON."""
    body = msgspec.json.encode(content)
    return web.Response(status=status, body=body, headers=headers, content_type="application/json")
