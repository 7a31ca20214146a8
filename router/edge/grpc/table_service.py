"""The gRPC service for tables."""

import re
import time
from collections.abc import AsyncIterator
from typing import Any

from msgspec.structs import replace
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1 import table_service_pb2_grpc as pb_grpc

from router.access import Access, caller
from router.background import in_worker
from router.edge.asked_table import Tables
from router.edge.grpc.convert_request import options_from_proto, page_size
from router.edge.grpc.convert_table import table_request_from_proto, table_to_proto
from router.edge.grpc.services import streamed
from router.edge.running import Detached, Work
from router.errors import BadRequest
from router.runs import RequestOptions, Runs
from router.trace import Run
from router.trace.values import OnEvent

_PAGE = 100


class TableServicer(pb_grpc.TableServiceServicer):
    """Implements `TableService`."""

    def __init__(self, tables: Tables, runs: Runs, access: Access) -> None:
        """`tables`: fills the tables. `runs`: the stored runs. `access`: cancels a detached run
        when the key of its request is revoked.
        """
        self._tables = tables
        self._runs = runs
        self.detached = Detached(access)

    async def FillTable(self, request: pb.FillTableRequest, context: Any) -> pb.FillTableResponse:
        """Fill a table and return it. For a detached request, start the run and return only its
        identifier.
        """
        work = self._filling(request, options_from_proto(request, context))
        if not request.detached:
            run = await work(lambda _event: None)
            return pb.FillTableResponse(run_id=run.id, table=await table_to_proto(run))
        return pb.FillTableResponse(run_id=await self.detached.start(work))

    def StreamTable(
        self, request: pb.StreamTableRequest, context: Any
    ) -> AsyncIterator[pb.StreamTableResponse]:
        """Fill a table and stream the events of the run."""
        return streamed("table", self._filling(request, options_from_proto(request, context)))

    def _filling(
        self, request: pb.FillTableRequest | pb.StreamTableRequest, options: RequestOptions
    ) -> Work:
        if isinstance(request, pb.FillTableRequest) and request.detached:
            options = replace(options, time_s=None)

        async def work(emit: OnEvent) -> Run:
            wanted = await in_worker(table_request_from_proto, request)
            return await self._tables.fill_table(wanted, options, emit)

        return work

    async def GetTable(self, request: pb.GetTableRequest, _context: Any) -> pb.GetTableResponse:
        """Return a page of a run's table. The run may still be under way."""
        size = page_size(request.page_size, _PAGE)
        if not re.fullmatch("[0-9]*", request.page_token):
            raise BadRequest(
                "page_token is invalid; send the next_page_token of the previous page, or leave it "
                "empty for the first page."
            )
        run = await self._runs.get(request.run_id, caller())
        if run.kind != "table":
            raise BadRequest(f"run_id {run.id!r}: is of kind {run.kind}, not a table; use GetRun.")
        if run.redacted:
            raise BadRequest(
                f"run_id {run.id!r}: the texts of this tenant's runs are not stored (setting "
                "redact), so the table is gone; send a new request, and keep the response."
            )
        if running := run.status == "running":
            run = replace(run, duration_s=time.time() - run.started_at)
        start = int(request.page_token or 0)
        table = await table_to_proto(run, start, start + size)
        return pb.GetTableResponse(
            table=table, running=running, next_page_token=table.next_page_token
        )
