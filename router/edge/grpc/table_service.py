"""The gRPC service for tables."""

import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import msgspec
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1 import table_service_pb2_grpc as pb_grpc

from router.access import Access, caller
from router.background import in_worker
from router.edge.asked_table import Tables
from router.edge.grpc.convert import tell_event
from router.edge.grpc.convert_request import options_from_proto
from router.edge.grpc.convert_table import (
    last_events_to_proto,
    table_event_to_proto,
    table_request_from_proto,
    table_to_proto,
)
from router.edge.run_table import TableEvents
from router.edge.running import Detached, Running
from router.errors import BadRequest
from router.runs import Runs
from router.trace import Event, Run
from router.trace.values import OnEvent

_PAGE = 100
_LARGEST_PAGE = 1000


class TableServicer(pb_grpc.TableServiceServicer):
    """Implements `TableService`."""

    def __init__(self, tables: Tables, runs: Runs, access: Access | None = None) -> None:
        """`access`: cancels detached runs whose key is revoked."""
        self._tables = tables
        self._runs = runs
        self._access = access
        self.detached = Detached()

    async def FillTable(self, request: pb.FillTableRequest, context: Any) -> pb.FillTableResponse:
        """Fill a table, or start a detached run that does."""
        wanted = await in_worker(table_request_from_proto, request)
        options = options_from_proto(request, context)
        if not request.detached:
            run = await self._tables.fill_table(wanted, options)
            return pb.FillTableResponse(run_id=run.id, table=await table_to_proto(run))
        options = msgspec.structs.replace(options, time_s=None)

        async def work(on_event: OnEvent) -> Run:
            with self._access.serving(options.identity) if self._access else nullcontext():
                return await self._tables.fill_table(wanted, options, on_event)

        return pb.FillTableResponse(run_id=await self.detached.start(work))

    async def StreamTable(
        self, request: pb.StreamTableRequest, context: Any
    ) -> AsyncIterator[pb.StreamTableResponse]:
        """Fill a table and stream the events."""
        wanted = await in_worker(table_request_from_proto, request)
        options = options_from_proto(request, context)
        state = TableEvents()
        number = 1
        async with Running[Event, Run](
            lambda tell: self._tables.fill_table(wanted, options, tell)
        ) as running:
            async for events in running:
                for event in events:
                    yield await tell_event(partial(table_event_to_proto, state), number, event)
                    number += 1
            run = await running.result()
        for last in await last_events_to_proto(number, run):
            yield last

    async def GetTable(self, request: pb.GetTableRequest, _context: Any) -> pb.GetTableResponse:
        """Return a page of a run's table."""
        if request.page_size < 0:
            raise BadRequest(f"page_size is {request.page_size}; leave it 0 for {_PAGE}.")
        if request.page_token and not (
            request.page_token.isascii() and request.page_token.isdecimal()
        ):
            raise BadRequest(
                "page_token is invalid; send next_page_token of the previous page, or none."
            )
        run = await self._runs.get(request.run_id, caller())
        if run.kind != "table":
            raise BadRequest(f"run_id {run.id!r} is not a table; use GetRun.")
        if run.redacted:
            raise BadRequest(
                f"run_id {run.id!r}: the texts of this tenant's runs are not stored, so "
                "there is no table."
            )
        if running := run.status == "running":
            run = msgspec.structs.replace(run, duration_s=time.time() - run.started_at)
        start = int(request.page_token or 0)
        size = min(request.page_size or _PAGE, _LARGEST_PAGE)
        table = await table_to_proto(run, start, start + size)
        return pb.GetTableResponse(
            table=table, running=running, next_page_token=table.next_page_token
        )
