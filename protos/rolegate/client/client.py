"""The client for programs that wait."""

import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, Self, TypeVar, Unpack, cast

from rolegate.client import calls
from rolegate.client.calls import Call, Stubs
from rolegate.client.connection import Access, Connection
from rolegate.client.gateway_error import GatewayError, translated
from rolegate.client.options import P, Result, checked
from rolegate.client.requests import ADDRESS, ListFilter
from rolegate.client.table import Table, joined
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1.run_service_pb2 import Run

Item = TypeVar("Item")


class Stream(Generic[Item]):
    """Items, as they come.

    Cancelled, also by leaving its context, it stops the work upstream; reading on raises
    `GatewayError`.
    """

    def __init__(self, call: Any, address: str, item: Callable[[Any], Item]) -> None:
        self._call = call
        self._address = address
        self._item = item

    def cancel(self) -> None:
        """Stop; of no effect at the end."""
        self._call.cancel()

    def __iter__(self) -> Iterator[Item]:
        with self, translated(self._address):
            yield from map(self._item, self._call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.cancel()


def _called(make: Callable[P, Call[Result]]) -> "Callable[Concatenate[Client, P], Result]":
    """A method that makes a call, and returns its result."""
    make = checked(make)

    @wraps(make)
    def method(client: "Client", /, *args: P.args, **options: P.kwargs) -> Result:
        result = client._call(make(*args, **options))
        if not isinstance(result, Table):
            return result
        return cast("Result", client.whole(result.message))

    return method


def _streamed(
    make: Callable[P, Call[Result]],
) -> "Callable[Concatenate[Client, P], Stream[Result]]":
    """A method that makes a call, and returns the stream of its results."""
    make = checked(make)

    @wraps(make)
    def method(client: "Client", /, *args: P.args, **options: P.kwargs) -> Stream[Result]:
        call = make(*args, **options)
        to = client._to
        begun = call.method(client._stubs)(
            call.request, timeout=call.timeout_s, metadata=to.metadata
        )
        return Stream(begun, to.address, call.result)

    return method


class Client:
    """Asks the gateway at `address`, host:port. Every method raises `GatewayError`;
    `rolegate.client.calls` has them with their parameters.
    """

    @checked
    def __init__(self, address: str | Connection = ADDRESS, **access: Unpack[Access]) -> None:
        """Raises `ValueError` where a key would be sent in the clear, and `OSError` where a
        file cannot be read.
        """
        self._to = address if isinstance(address, Connection) else Connection.to(address, **access)
        self._channel = self._to.channel()
        self._stubs = Stubs(self._channel)

    ask = _called(calls.ask)
    stream = _streamed(calls.stream)
    table = _called(calls.table)
    stream_table = _streamed(calls.stream_table)
    begin_table = _called(calls.begin_table)
    search = _called(calls.search)
    run = _called(calls.run)
    watch = _streamed(calls.watch)
    cancel = _called(calls.cancel)
    feedback = _called(calls.feedback)
    export = _streamed(calls.export)
    usage = _called(calls.usage)
    reconcile = _called(calls.reconcile)
    versions = _called(calls.versions)
    register_version = _called(calls.register_version)
    set_version_traffic = _called(calls.set_version_traffic)
    promote_version = _called(calls.promote_version)
    roll_back_version = _called(calls.roll_back_version)
    version_decisions = _called(calls.version_decisions)

    @checked
    def runs(self, **wanted: Unpack[ListFilter]) -> Iterator[Run]:
        """Runs, newest first, asked for a page at a time."""
        token: str | None = ""
        while token is not None:
            page = self._call(calls.page(token, wanted))
            yield from page.runs
            token = page.next_page_token or None

    def get_table(self, run_id: str) -> Table:
        """The table of a run, also while it is being filled, asked for a page at a time."""
        pages = [self._call(calls.table_page(run_id, ""))]
        while token := pages[-1].next_page_token:
            pages.append(self._call(calls.table_page(run_id, token)))
        return joined([page.table for page in pages])

    def whole(self, table: pb.Table) -> Table:
        """Return a table with the rows that there was no room for in its message."""
        return self.get_table(table.run_id) if table.next_page_token else Table(table)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _call(self, call: Call[Result]) -> Result:
        begun = time.monotonic()
        try:
            return self._send(call, self._stubs, call.timeout_s)
        except GatewayError as error:
            if not (call.repeatable and call.timeout_s and error.connection_broke):
                raise
        with self._to.channel() as channel:  # the other one may not know yet that it is dead
            return self._send(call, Stubs(channel), call.timeout_s - (time.monotonic() - begun))

    def _send(self, call: Call[Result], stubs: Stubs, timeout_s: float | None) -> Result:
        with translated(self._to.address):
            return call.result(
                call.method(stubs)(call.request, timeout=timeout_s, metadata=self._to.metadata)
            )
