"""Rollouts and indexes with two and four workers on Ray and without Ray: `python -m
tests.ray_figures CORPUS`. Prints how long each command takes, and a digest of what it writes.

Rollouts are of 60 questions about films, 8 at a time, with scripted models that take 50 ms for each
call. An index is built of the first 2,048 rows of CORPUS, in JSON lines. In the last line of each
kind, a worker is killed in the middle. A worker computes in one thread, a command without Ray in as
many as there are cores; one of its lines is with one.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web

from router.edge.grpc.server import Server
from serving.retrieval.services import RetrievalServicer
from tests.executor_sft.scripted_roles import OnePage, questions
from tests.executor_sft.test_rollout import Endpoint
from tests.openai_server import serving
from tests.ray_cluster import RayCluster, end, ray_cluster, start
from tests.router.unfiltered import Unfiltered

_QUESTIONS = 60
_ROWS = 2048
_CALL_S = 0.05
_ROLES = {
    "roles.delegation": ("backbone", "delegation"),
    "roles.execution": ("student", "execution"),
    "roles.answer": ("answerer", "answer"),
    "distillation.teacher": ("teacher", "execution"),
}


def digest(folder: Path, *names: str) -> str:
    """Return a digest of the files with these names, or of all. Calls count in any order."""
    content = sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if not names or path.name in names:
            lines = path.read_bytes().splitlines()
            content.update(b"".join(sorted(lines) if path.name == "calls.jsonl" else lines))
    return content.hexdigest()[:12]


async def timed(
    cluster: RayCluster,
    command: tuple[object, ...],
    out: Path,
    *,
    kill_after_s: float = 0,
    variables: dict[str, str],
) -> float:
    """Run a command, and return its seconds. `kill_after_s`: seconds of work after which a worker
    is killed; 0 for none. `variables`: further environment variables.
    """
    begun = time.perf_counter()
    process = await start((*command, "--out", out), cluster.environment | variables)
    if kill_after_s:
        await cluster.working()
        await asyncio.sleep(kill_after_s)
        cluster.kill_worker()
    _, errors = await process.communicate()
    assert process.returncode == 0, errors
    return time.perf_counter() - begun


async def measured(
    cluster: RayCluster,
    command: tuple[object, ...],
    folder: Path,
    digest_of: Callable[[Path], str],
) -> None:
    """Run a command in five ways, and print a line for each."""
    name = f"{command[0]} {command[1]}"
    ray = (*command, "--ray", cluster.address)

    async def show(
        how: str, arguments: tuple[object, ...], kill_after_s: float = 0, **variables: str
    ) -> None:
        out = folder / f"{command[1]}, {how}"
        took_s = await timed(
            cluster, arguments, out, kill_after_s=kill_after_s, variables=variables
        )
        print(f"{name:12} {how:28} {took_s:6.1f} s  {digest_of(out)}", flush=True)

    await show("without Ray", command)
    await show("without Ray, one thread", command, OMP_NUM_THREADS="1")
    await show("a worker a core (local)", (*command, "--ray", "local"))
    while len(cluster.nodes) > 2:
        end(cluster.nodes.pop())
    await show("2 workers", ray)
    cluster.add_node()
    cluster.add_node()
    await show("4 workers", ray)
    await show("4 workers, one killed", ray, 5.0)


@asynccontextmanager
async def rollout(folder: Path) -> AsyncIterator[tuple[object, ...]]:
    """Yield a command whose models and retriever are running."""
    endpoint = Endpoint()

    async def paced(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(_CALL_S)
        return await endpoint.play(request)

    async with serving(recording=False) as models:
        models.plays(paced)
        server = Server(None, RetrievalServicer(Unfiltered(OnePage())))
        port = await server.start("127.0.0.1:0")
        tables = [f'[retrieval]\naddress = "127.0.0.1:{port}"\n'] + [
            f'[{table}]\nmodel = "{model}"\nprompt = "shipped:prompts/full/{prompt}.txt"\n'
            f'base_url = "{models.base_url}"\n'
            for table, (model, prompt) in _ROLES.items()
        ]
        (folder / "config.toml").write_text("\n".join(tables), "utf-8")
        rows = (
            json.dumps({"id": each.id, "question": each.text, "answers": each.golds})
            for each in questions(_QUESTIONS)
        )
        (folder / "questions.jsonl").write_text("\n".join(rows), "utf-8")
        options = ("--questions", folder / "questions.jsonl", "--config", folder / "config.toml")
        yield "sft", "rollout", *options
        await server.drain(0)


async def main(corpus: Path) -> None:
    with TemporaryDirectory() as name, ray_cluster() as cluster:
        folder = Path(name)
        async with rollout(folder) as command:
            await measured(
                cluster,
                command,
                folder,
                lambda out: digest(out, "rollouts.jsonl", "calls.jsonl"),
            )
        with corpus.open("rb") as lines:
            (folder / "corpus.jsonl").write_bytes(b"".join(islice(lines, _ROWS)))
        await measured(
            cluster,
            ("index", "build", folder / "corpus.jsonl", "--lexical"),
            folder,
            digest,
        )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
