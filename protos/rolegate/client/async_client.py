"""Client for programs that use asyncio. Create the client inside the running event loop."""

import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, Self, TypeVar, Unpack, cast

import grpc

from rolegate.client import calls
from rolegate.client.calls import PAGE, Call
from rolegate.client.connection import Access, Connection
from rolegate.client.gateway_error import GatewayError, translated
from rolegate.client.options import P, Result, checked
from rolegate.client.requests import (
    ADDRESS,
    ChatMessage,
    ListFilter,
    RequestOptions,
    extended,
    request,
)
from rolegate.client.table import Table, joined
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1.admin_service_pb2 import Key, ListKeysRequest, ListTenantsRequest, Tenant
from rolegate.v1.answer_service_pb2 import AnswerResponse
from rolegate.v1.document_service_pb2 import Document, ListDocumentsRequest
from rolegate.v1.run_service_pb2 import ListRunsRequest, Run

Item = TypeVar("Item")


class AsyncStream(Generic[Item]):
    """Async iterator over the items of a streamed call. Each item is yielded when it arrives.

    Cancelling the stream, or leaving its context, stops the work at the gateway. Reading the stream
    afterwards raises `GatewayError`.
    """

    def __init__(self, call: Any, address: str, item: Callable[[Any], Item]) -> None:
        self._call = call
        self._address = address
        self._item = item
        self._run_id = ""

    def cancel(self) -> None:
        """Stop the call. Does nothing if the call has ended."""
        self._call.cancel()

    async def __aiter__(self) -> AsyncIterator[Item]:
        async with self:
            with translated(self._address, lambda: self._run_id):
                async for response in self._call:
                    item: Any = self._item(response)
                    if hasattr(item, "run_started"):
                        self._run_id = item.run_started.run_id or self._run_id
                    yield item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.cancel()


def _unary(
    make: Callable[P, Call[Result]],
) -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, Result]]":
    """Return a client method that passes its arguments to `make`, makes the returned call, and
    returns the result of the call.
    """
    make = checked(make)

    @wraps(make)
    async def method(client: "AsyncClient", /, *args: P.args, **options: P.kwargs) -> Result:
        result = await client._call(make(*args, **options))
        if not isinstance(result, Table):
            return result
        return cast("Result", await client.with_all_rows(result.message))

    return method


def _streamed(
    make: Callable[P, Call[Result]],
) -> "Callable[Concatenate[AsyncClient, P], AsyncStream[Result]]":
    """Return a client method that passes its arguments to `make`, begins the returned call, and
    returns the stream of its results.
    """
    make = checked(make)

    @wraps(make)
    def method(client: "AsyncClient", /, *args: P.args, **options: P.kwargs) -> AsyncStream[Result]:
        call = make(*args, **options)
        return AsyncStream(
            call.begin(client._channel, client._connection, call.timeout_s),
            client._connection.address,
            call.result,
        )

    return method


class AsyncClient:
    """Client of a gateway, with a method for each of the gateway's calls.

    The parameters of the methods are documented at the functions of the same names in
    `rolegate.client.calls`. Every method raises `GatewayError` if the call fails.
    """

    @checked
    def __init__(self, address: str | Connection = ADDRESS, **access: Unpack[Access]) -> None:
        """Open a connection to the gateway at `address`, which is host:port or a `Connection`.

        `access`: see `Access`. Raises `ValueError` if the address is invalid or the API key would
        be sent unencrypted to another machine, and `OSError` if a certificate file cannot be read.
        """
        if not isinstance(address, Connection):
            address = Connection.to(address, **access)
        self._connection = address
        self._channel = address.channel(grpc.aio)

    ask = _unary(calls.ask)
    stream = _streamed(calls.stream)
    table = _unary(calls.table)
    stream_table = _streamed(calls.stream_table)
    begin_table = _unary(calls.begin_table)
    search = _unary(calls.search)
    upload = _unary(calls.upload)
    delete_document = _unary(calls.delete_document)
    get_build = _unary(calls.get_build)
    run = _unary(calls.run)
    watch = _streamed(calls.watch)
    cancel = _unary(calls.cancel)
    feedback = _unary(calls.feedback)
    export = _streamed(calls.export)
    usage = _unary(calls.usage)
    reconcile = _unary(calls.reconcile)
    versions = _unary(calls.versions)
    register_version = _unary(calls.register_version)
    set_version_traffic = _unary(calls.set_version_traffic)
    promote_version = _unary(calls.promote_version)
    roll_back_version = _unary(calls.roll_back_version)
    version_decisions = _unary(calls.version_decisions)
    create_key = _unary(calls.create_key)
    rotate_key = _unary(calls.rotate_key)
    expire_key = _unary(calls.expire_key)
    revoke_key = _unary(calls.revoke_key)
    update_key = _unary(calls.update_key)
    audit = _unary(calls.audit)
    tenant = _unary(calls.tenant)
    update_tenant = _unary(calls.update_tenant)

    def chat(self) -> "AsyncChat":
        """Begin a conversation, in which each question may refer to earlier questions."""
        return AsyncChat(self)

    @checked
    def runs(self, **wanted: Unpack[ListFilter]) -> AsyncIterator[Run]:
        """Yield the runs that match the filter `wanted`, newest first. They are fetched page by
        page.
        """
        return self._pages(request(ListRunsRequest, wanted, page_size=PAGE), "runs")

    def list_documents(self) -> AsyncIterator[Document]:
        """Yield the documents of the caller's tenant, sorted by name. They are fetched page by
        page.
        """
        return self._pages(ListDocumentsRequest(page_size=PAGE), "documents")

    def keys(self) -> AsyncIterator[Key]:
        """Yield all keys, oldest first. They are fetched page by page."""
        return self._pages(ListKeysRequest(page_size=PAGE), "keys")

    def tenants(self) -> AsyncIterator[Tenant]:
        """Yield all tenants: `default` first, then the other tenants, sorted by name. They are
        fetched page by page.
        """
        return self._pages(ListTenantsRequest(page_size=PAGE), "tenants")

    async def _pages(self, wanted: Any, items: str) -> AsyncIterator[Any]:
        """Yield the items of all pages. `wanted`: request for the first page. `items`: name of the
        field with the items of a page.
        """
        while True:
            page: Any = await self._call(Call(wanted))
            for item in getattr(page, items):
                yield item
            if not page.next_page_token:
                return
            wanted.page_token = page.next_page_token

    async def get_table(self, run_id: str) -> Table:
        """Return the whole table of a run, which may still be in progress. The table is fetched
        page by page.
        """
        pages = [await self._call(calls.table_page(run_id, ""))]
        while token := pages[-1].next_page_token:
            pages.append(await self._call(calls.table_page(run_id, token)))
        return joined([page.table for page in pages])

    async def with_all_rows(self, table: pb.Table) -> Table:
        """Return the whole table. `table`: message with all rows or only the first ones; missing
        rows are fetched.
        """
        return await self.get_table(table.run_id) if table.next_page_token else Table(table)

    async def close(self) -> None:
        """Close the connection to the gateway, and cancel calls that are in progress."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def _call(self, call: Call[Result]) -> Result:
        """Make a unary call and return its result. If the connection breaks and the call may be
        repeated, make the call once more.
        """
        connection = self._connection
        begun = time.monotonic()
        try:
            with translated(connection.address):
                response = await call.begin(self._channel, connection, call.timeout_s)
                return call.result(response)
        except GatewayError as error:
            if not (call.repeatable and error.connection_broke):
                raise
            broken = error

        # A new connection is used, because the channel may not have noticed yet that its connection
        # is broken.
        rest_s = call.timeout_s and call.timeout_s - (time.monotonic() - begun)
        async with connection.channel(grpc.aio) as channel:
            try:
                with translated(connection.address):
                    return call.result(await call.begin(channel, connection, rest_s))
            except GatewayError as error:
                raise (broken if error.connection_broke else error) from None


class AsyncChat:
    """A conversation with a gateway. This object keeps the history; the gateway stores only the
    runs.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.history: tuple[ChatMessage, ...] = ()
        """The latest questions and answers, oldest first, as many as a request may contain."""

    async def ask(
        self, question: str, timeout_s: float | None = None, **options: Unpack[RequestOptions]
    ) -> AnswerResponse:
        """Answer a question, which may refer to the conversation so far, and add question and
        answer to `history`. See the client's method `ask` for parameters and errors.
        """
        options.setdefault("history", self.history)
        answer = await self._client.ask(question, timeout_s, **options)
        self.history = extended(self.history, question, answer.answer)
        return answer
