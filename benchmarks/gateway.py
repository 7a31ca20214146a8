"""Run a gateway in a separate process (`python -m benchmarks.gateway CONFIG DOUBLES…`), with
simulated models.

The process listens on free loopback ports, prints its gRPC and HTTP addresses, and runs until its
standard input is closed. DOUBLES name parts of the gateway to replace: `retriever` replaces the
config's retrieval with a retriever inside the process; `no-store` replaces the store with a store
that keeps nothing.

The simulated models answer every question in the same way: a run has 3 calls of the delegator, 2
sub-queries, each with 2 calls of an executor and one search, and 1 call of the answerer.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import structlog
import tomlkit
import uvloop

from benchmarks.harness import Child, child
from router.edge.grpc.server import Server
from router.ledger.journal import NoJournal
from router.protocol import Passage
from router.search.retrieval import IndexRetriever
from router.testing.openai_server import (
    Behaviour,
    ChatRequest,
    OpenAIServer,
    Reply,
    serving,
    writes,
)
from router.trace.scope import NO_FILTER, DocumentFilter
from serving.composition import running_gateway
from serving.config.file import load_config
from serving.logs import errors_only
from serving.retrieval.services import RetrievalServicer
from serving.signals import tune_interpreter

MAX_TOKENS = 64
MODELS = {"delegation": "delegator", "execution": "executor", "answer": "answerer"}
_ANY = "127.0.0.1:0"
_PASSAGE = Passage(
    "p1", "Heat", "Heat is a film by Michael Mann, who was born in Chicago in 1943.", 0.9
)


def canned(asked: ChatRequest) -> str:
    """Return the text that the simulated model `asked.model` writes. Sub-queries and search queries
    contain the question, so that different questions have no queries in common.
    """
    about = asked.texts[1] if len(asked.texts) > 1 else ""
    turns = len(asked.texts)
    match asked.model:
        case "delegator" if turns > 4:
            return "<stop/>Enough evidence<stop>"
        case "delegator":
            order = "First" if turns == 2 else "Then"
            return f"<search>{json.dumps([f'{order}: {about}'])}</search>"
        case "executor" if turns == 2:
            return f"<search>{about}</search>"
        case "executor":
            return (
                "<answer>Michael Mann</answer>\n<evidence>Heat is a film by Michael Mann</evidence>"
            )
    return "<answer>in 1943</answer>"


def at_once(asked: ChatRequest) -> Reply:
    """Return the reply of `canned`, without any delay."""
    return Reply.of(canned(asked))


class OnePassage:
    """Retriever that returns the same passage for every query."""

    index_id: str | None = None
    """Id of the index; None, because there is no index."""

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """Return the passage for each query. `document` and `only` have no effect."""
        return [[_PASSAGE][:top_k] for _ in queries]


@asynccontextmanager
async def played(*behaviours: Behaviour) -> AsyncIterator[tuple[OpenAIServer, str]]:
    """Start simulated models and a retrieval service in this process. Yield the server of the
    models, and the address of the retrieval service.

    `behaviours`: the models' ways to reply; by default, they reply as `at_once` does.
    """
    async with serving() as models, retrieval(OnePassage()) as address:
        models.plays(*behaviours or (writes(at_once),))
        yield models, address


@asynccontextmanager
async def retrieval(retriever: IndexRetriever) -> AsyncIterator[str]:
    """Start a retrieval service in this process, and yield its address as host:port."""
    server = Server(None, RetrievalServicer(retriever))
    port = await server.start(_ANY)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.drain(0)


def canned_config(
    folder: Path,
    base_urls: Sequence[str],
    retrieval: str,
    roles: Mapping[str, Mapping[str, Any]] | None = None,
    **sections: Mapping[str, Any],
) -> Path:
    """Write the config of a gateway with simulated models into `folder`, and return the config's
    path. The gateway's store is in the same folder, and its report cache is off by default.

    `base_urls`: base URLs of the models; all after the first are replicas. `retrieval`: address of
    the retrieval service. `roles`: further keys for each role's section. `sections`: further keys
    for other sections, by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    by_role = roles or {}
    common = {"base_url": base_urls[0], "replicas": list(base_urls[1:]), "max_tokens": MAX_TOKENS}
    config: dict[str, Any] = {
        "server": {"store": f"sqlite:///{folder}/runs.db"},
        "retrieval": {"address": retrieval},
        "report_cache": {"enabled": False},
        "roles": {
            role: {
                "model": model,
                "prompt": f"shipped:prompts/full/{role}.txt",
                **common,
                **by_role.get(role, {}),
            }
            for role, model in MODELS.items()
        },
    }
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section}
    (file := folder / "rolegate.toml").write_text(tomlkit.dumps(config), "utf-8")
    return file


Double = Literal["retriever", "no-store"]
"""Replacement of a part of the gateway. `retriever`: a retriever in the gateway's process.
`no-store`: a store that keeps nothing.
"""


def gateway(config: Path, *doubles: Double) -> AbstractAsyncContextManager[Child]:
    """Start a gateway in a child process. `Child.words` are its gRPC and its HTTP address."""
    return child("benchmarks.gateway", str(config), *doubles)


async def _serve(config: Path, doubles: Sequence[str]) -> None:
    log_lines = list[str]()
    opened = running_gateway(
        load_config(config),
        _ANY,
        log_lines.append,
        _ANY,
        retriever=OnePassage() if "retriever" in doubles else None,
        journal=lambda usual: NoJournal() if "no-store" in doubles else usual,
    )
    async with opened as address:
        tune_interpreter()
        print(address, log_lines[-1].rpartition(" ")[2], flush=True)  # the HTTP address
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    errors_only()
    uvloop.run(_serve(Path(sys.argv[1]), sys.argv[2:]))
