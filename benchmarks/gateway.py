"""A gateway in a process of its own, before models that are played: `python -m benchmarks.gateway
CONFIG DOUBLES…`.

It listens on free ports of the loopback, prints the addresses of gRPC and of HTTP, and goes on
until its standard input ends. Doubles: `retriever`, one in the process, whatever the config says;
`no-store`, a journal that keeps nothing; `timed`, a journal that measures: for each line that it is
sent, the gateway prints how many seconds each call since the last line took to be on record.

The played models answer a two-hop question: 3 calls of the delegator, 2 executor runs of 2 turns
with a search each, and 1 call of the answerer.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

import structlog
import tomlkit
import uvloop

from benchmarks.harness import Child, child
from router.edge.grpc.server import Server
from router.ledger import Journal
from router.ledger.journal import NoJournal
from router.protocol import Passage
from router.search import Retriever
from router.testing.openai_server import (
    Behaviour,
    ChatRequest,
    OpenAIServer,
    Reply,
    serving,
    writes,
)
from router.trace.call import OpenedCall
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
    """The text of a role's turn; sub-queries and queries repeat the question, so that no two
    questions share any.
    """
    about = asked.texts[1] if len(asked.texts) > 1 else ""
    turns = len(asked.texts)
    match asked.model:
        case "delegator" if turns > 4:
            return "<stop/>Enough evidence<stop>"
        case "delegator":
            return (
                f"<search>{json.dumps([('First: ' if turns == 2 else 'Then: ') + about])}</search>"
            )
        case "executor" if turns == 2:
            return f"<search>{about}</search>"
        case "executor":
            return (
                "<answer>Michael Mann</answer>\n<evidence>Heat is a film by Michael Mann</evidence>"
            )
    return "<answer>in 1943</answer>"


def at_once(asked: ChatRequest) -> Reply:
    """A role's turn without any delay."""
    return Reply.of(canned(asked))


class OnePassage:
    """Finds the same for every query."""

    index_id: str | None = None
    """See `IndexRetriever.index_id`."""

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """See `Retriever.search`."""
        return [[_PASSAGE][:top_k] for _ in queries]


@asynccontextmanager
async def played(*behaviours: Behaviour) -> AsyncIterator[tuple[OpenAIServer, str]]:
    """Models in this process, and the address of a retrieval."""
    async with serving(recording=False) as models, retrieval(OnePassage()) as address:
        models.plays(*behaviours or (writes(at_once),))
        yield models, address


@asynccontextmanager
async def retrieval(retriever: Retriever) -> AsyncIterator[str]:
    """A retrieval service in this process; host:port."""
    server = Server(None, RetrievalServicer(retriever))
    port = await server.start("127.0.0.1:0")
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
    """Write the config of a gateway before played models, with its store, into a new `folder`; its
    file. Executor runs are not shared unless a section says so. `roles`: further keys of each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    further = roles or {}
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
                **further.get(role, {}),
            }
            for role, model in MODELS.items()
        },
    }
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section}
    (file := folder / "rolegate.toml").write_text(tomlkit.dumps(config), "utf-8")
    return file


Double = Literal["retriever", "no-store", "timed"]


def gateway(config: Path, *doubles: Double) -> AbstractAsyncContextManager[Child]:
    """A gateway in a process of its own; its words are the addresses of gRPC and of HTTP."""
    return child("benchmarks.gateway", str(config), *doubles)


async def on_record_s(process: Child) -> list[float]:
    """Seconds of each call since the last time until it was on record, of a gateway with the
    double `timed`.
    """
    return list(json.loads(await process.answer(b"")))


class TimedJournal:
    """A journal around another one, which measures how long a call takes to be on record."""

    def __init__(self, journal: Journal, took_s: list[float]) -> None:
        """`took_s`: gets the seconds of each call."""
        self._journal = journal
        self._took_s = took_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def open(self, call: OpenedCall) -> None:
        """See `Journal.open`."""
        begun = time.perf_counter()
        await self._journal.open(call)
        self._took_s.append(time.perf_counter() - begun)


async def _serve(config: Path, doubles: Sequence[str]) -> None:
    told = list[str]()
    took_s = list[float]()

    def journal(usual: Journal) -> Journal:
        if "timed" in doubles:
            return cast(Journal, TimedJournal(usual, took_s))
        return NoJournal() if "no-store" in doubles else usual

    retriever = OnePassage() if "retriever" in doubles else None
    log = told.append
    opened = running_gateway(
        load_config(config), _ANY, log, _ANY, retriever=retriever, journal=journal
    )
    async with opened as address:
        tune_interpreter()
        print(address, told[-1].rpartition(" ")[2], flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(took_s), flush=True)
            took_s.clear()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    errors_only()
    uvloop.run(_serve(Path(sys.argv[1]), sys.argv[2:]))
