"""A real server on a free port of the loopback, and readers of its statuses."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from router.access import Access, new_key
from router.edge.grpc.document_service import DocumentServicer
from router.edge.grpc.server import Server
from router.edge.grpc.services import RunServicer, UsageServicer
from router.edge.grpc.table_service import TableServicer
from router.edge.listening import TLS
from router.ledger import UsageQuery, UsageReport
from router.ledger.reconciliation import Reconciliation
from router.ledger.usage import UsageRow
from router.runs import Gateway, RunLifecycle, Runs
from router.runs.live import LiveRuns
from router.trace import Execution
from router.trace.call import totals
from router.trace.identity import SCOPES
from router.trace.table import Ask
from serving.retrieval.services import RetrievalServicer
from tests.router.accounts import KeptAccounts, open_access
from tests.router.clock import ended
from tests.router.deployment import STOP, Deployment, Kept, block
from tests.router.scripted_tables import SCRIPT, ScriptedTables
from tests.router.unfiltered import PlainRetriever, Unfiltered
from tests.scripted_model import ScriptedModel


class KeptUsages:
    """The usage of the calls of a store in memory, by role and model."""

    def __init__(self, store: Kept) -> None:
        self._store = store
        self.queries: list[UsageQuery] = []

    async def usage(self, query: UsageQuery) -> UsageReport:
        self.queries.append(query)
        start = query.start or 0.0
        end = query.end or float("inf")
        runs = [run for run in self._store.runs if start <= run.started_at < end]
        rows = [
            UsageRow(**msgspec.structs.asdict(total))
            for total in totals(call for run in runs for call in run.calls)
        ]
        return UsageReport(len(runs), tuple(rows))


def reconciling(reconciliations: list[Reconciliation]) -> Any:
    """Return a reconciler with this result."""

    class FixedReconciler:
        async def reconcile(self) -> list[Reconciliation]:
            return reconciliations

    return FixedReconciler()


def whole_server(
    deployment: Deployment,
    store: Kept | None = None,
    retriever: PlainRetriever | None = None,
    access: Access | None = None,
    tls: TLS | None = None,
    *,
    script: Sequence[tuple[Ask, Execution]] = SCRIPT,
    **options: Any,
) -> Server:
    """Return a server of all services over a store in memory.

    `script` is for tables; `options` are those of `Deployment.gateway`.
    """
    store = store or Kept()
    live = LiveRuns()
    return Server(
        deployment.gateway(store, live=live, **options),
        RetrievalServicer(Unfiltered(retriever)) if retriever else None,
        RunServicer(Runs(store, live)),
        UsageServicer(
            KeptUsages(store),
            reconciling([Reconciliation("a provider", "unknown", "it has no counters")]),
        ),
        TableServicer(
            ScriptedTables(RunLifecycle(store, store, live, {}, 60.0), script),
            Runs(store, live),
            access or open_access(),
        ),
        DocumentServicer(None),
        access=access,
        tls=tls,
    )


@asynccontextmanager
async def locked_gateway() -> AsyncIterator[tuple[str, str]]:
    """Yield the address of a gateway that answers any number of questions, and its only key."""
    sent, key = new_key(None, SCOPES)
    deployment = Deployment(
        ScriptedModel(
            lambda prompt: block("Who directed Heat?") if len(prompt.messages) == 2 else STOP
        ),
        answerer=ScriptedModel(lambda _prompt: "<answer>Michael Mann</answer>"),
    )
    server = whole_server(deployment, access=Access(KeptAccounts(key)))
    try:
        yield f"127.0.0.1:{await server.start('127.0.0.1:0')}", sent
    finally:
        await server.drain(0)


@asynccontextmanager
async def served(gateway: Gateway | Server | None) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel to a server, or to a server of `gateway` alone."""
    server = gateway if isinstance(gateway, Server) else Server(gateway, None)
    port = await server.start("127.0.0.1:0")
    try:
        async with connected(port) as channel:
            yield channel
    finally:
        await server.drain(0)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel to a port of the loopback."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel


def info_of(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """Return the error detail of a status."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info


async def refusal(call: Any, match: str | None = None) -> tuple[str, str]:
    """Await a call that fails, and return its code and reason."""
    with pytest.raises(grpc.aio.AioRpcError, match=match) as caught:
        await ended(call)
    return caught.value.code().name, info_of(caught.value).reason


async def next_of(call: Any) -> Any:
    """Read the next message of a stream."""
    return await ended(call.read())
