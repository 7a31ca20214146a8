"""Milvus is killed while an index is filled, and again for a minute while a gateway searches in it:
`python -m tests.serving.retrieval.milvus_outage --data FOLDER [--index FOLDER] [--away SECONDS]`.

Milvus Lite is the server, and `rolegate serve` the gateway, whose passages are those of the
corpus.jsonl in FOLDER; their vectors are taken from `--index`, if it is given. Each of 16 callers
searches a question every half second. Health is asked every tenth of a second.
"""

import argparse
import asyncio
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
from rolegate.v1.retrieval_service_pb2 import SearchRequest
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub

from benchmarks.load import quantile
from benchmarks.retrieval import read_questions
from router.background import background_tasks
from router.errors import UpstreamUnavailable
from serving.config.config import MilvusConfig
from serving.retrieval.build import Built, build_index
from serving.retrieval.embedder import MiniLM
from serving.retrieval.milvus import MilvusStore
from tests.ports import free_port
from tests.serving.cli.test_cli import service
from tests.serving.retrieval.milvus_server import MilvusServer

CALLERS = 16
EVERY_S = 0.5
BEFORE_S = 15.0
AFTER_S = 30.0
_CONFIG = """
[server]
address = "127.0.0.1:0"
http = "{http}"
store = "sqlite:///runs.db"
[retrieval]
index = "index"
documents = ["{corpus}"]
lexical = true
[retrieval.milvus]
address = "{address}"
partition = "main"
timeout_s = 10
"""
_ROLE = '[roles.{name}]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\nprompt = "prompt.txt"\n'


@dataclass
class Seen:
    """What callers saw in one phase."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Number of searches by their outcome: `found`, or the error."""
    differing: int = 0
    """Searches that found something else than before."""
    waits_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        waits = (
            f"p50 {quantile(self.waits_s, 0.5):.3f} s, longest {max(self.waits_s, default=0):.3f} s"
        )
        return f"{dict(self.outcomes)}, differing {self.differing}, {waits}"


def killed_while_filled(corpus: Path, index: Path, server: MilvusServer) -> None:
    """Kill Milvus while a build fills it; build again, and compare what is there."""
    store = MilvusStore(MilvusConfig(address=server.address, partition="main"))

    def kill() -> None:
        with suppress(UpstreamUnavailable):
            while not _entities(server):
                time.sleep(0.01)
        server.kill()

    killing = Thread(target=kill)
    killing.start()
    try:
        _built(corpus, index, store)
        print("killed while filled: too late, the build had ended")
    except UpstreamUnavailable as error:
        print(f"killed while filled: {type(error).__name__}: {error}")
    killing.join()

    server.start()
    kept = _entities(server)
    started = time.perf_counter()
    built = _built(corpus, index, store)
    took_s = time.perf_counter() - started
    passages = built.manifest.passages
    print(
        f"after the kill Milvus had {kept} of {passages} passages; built again in {took_s:.1f} s, "
        f"{built.embedded} embedded, {_entities(server)} there, {built.manifest.searched_by}"
    )


def _built(corpus: Path, index: Path, store: MilvusStore) -> Built:
    return build_index([corpus], index, MiniLM(), lexical=True, store=store)


def _entities(server: MilvusServer) -> int:
    from pymilvus import MilvusClient, MilvusException

    with suppress(MilvusException):
        rows = MilvusClient(server.address).query("rolegate", output_fields=["count(*)"])
        return int(rows[0]["count(*)"])
    return 0


async def away(
    questions: list[str], server: MilvusServer, addresses: tuple[str, str], away_s: float
) -> None:
    """Search while Milvus is there, away, and there again; print what callers saw."""
    phase = ["before"]
    seen = {name: Seen() for name in ("before", "away", "after")}
    health: dict[str, Counter[str]] = {name: Counter() for name in seen}
    expected: dict[str, list[str]] = {}
    grpc_address, http_address = addresses
    found_at: list[float] = []

    async def call(stub: Any, asking: Iterator[str]) -> None:
        while True:
            question = next(asking)
            now = seen[phase[0]]
            started = time.perf_counter()
            try:
                answer = await stub.Search(SearchRequest(queries=[question], top_k=5), timeout=60)
                ids = [passage.passage_id for passage in answer.results[0].passages]
                now.differing += expected.setdefault(question, ids) != ids
                now.outcomes["found"] += 1
                if phase[0] == "after":
                    found_at.append(time.perf_counter())
            except grpc.aio.AioRpcError as error:
                status = error.code().name
                now.outcomes[f"{status}: {error.details()}"] += 1
            now.waits_s.append(time.perf_counter() - started)
            await asyncio.sleep(max(0.0, EVERY_S - now.waits_s[-1]))

    async def watch() -> None:
        while True:
            for path in ("healthz", "readyz"):
                status = await asyncio.to_thread(_status, f"http://{http_address}/{path}")
                health[phase[0]][f"{path} {status}"] += 1
            await asyncio.sleep(0.1)

    async with grpc.aio.insecure_channel(grpc_address) as channel:
        stub = RetrievalServiceStub(channel)
        asking = cycle(questions)
        callers = [call(stub, asking) for _ in range(CALLERS)]
        async with background_tasks(watch(), *callers):
            await asyncio.sleep(BEFORE_S)
            server.kill()
            phase[0] = "away"
            await asyncio.sleep(away_s)
            await asyncio.to_thread(server.start)
            phase[0] = "after"
            back_at = time.perf_counter()
            await asyncio.sleep(AFTER_S)
    for name, searches in seen.items():
        print(f"{name}: {searches}; {dict(health[name])}")
    if found_at:
        print(f"first found {min(found_at) - back_at:.2f} s after Milvus listened again")


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0  # no answer within five seconds


def written(folder: Path, corpus: Path, server: MilvusServer, http: str) -> Path:
    """Write the config of the gateway."""
    (folder / "prompt.txt").write_text("Work well.\n")
    roles = "".join(_ROLE.format(name=name) for name in ("delegation", "execution", "answer"))
    path = folder / "rolegate.toml"
    path.write_text(_CONFIG.format(corpus=corpus, address=server.address, http=http) + roles)
    return path


def main(options: Mapping[str, Any]) -> None:
    """Run both measurements."""
    data = options["data"].resolve()
    corpus = data / "corpus.jsonl"
    questions = [question.question for question in read_questions(data / "questions.jsonl")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options["index"]:
            shutil.copytree(options["index"], folder / "index")
        with MilvusServer(folder / "milvus") as server:
            killed_while_filled(corpus, folder / "index", server)
            http = f"127.0.0.1:{free_port()}"
            config = written(folder, corpus, server, http)
            with service("serve", "--config", str(config), cwd=folder) as gateway:
                addresses = (gateway.ready(), http)
                # A gateway whose log nobody reads stops once the pipe is full
                Thread(target=gateway.rest, daemon=True).start()
                asyncio.run(away(questions, server, addresses, options["away"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--away", type=float, default=60.0)
    main(vars(parser.parse_args()))
