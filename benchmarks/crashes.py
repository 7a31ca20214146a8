"""What a kill loses: a gateway in front of real vLLM engines is killed (SIGKILL) at random moments while it is asked,
and started again, many times. Every answer that a client received must be in the store with all its ledger rows, no
run may be left as running, and the ledger must equal the engines' own counters up to the calls that were in flight at
the kills, which are listed.

With --canned, models that answer at once take the place of the engines: then nearly every kill meets a commit.
"""

import argparse
import asyncio
import random
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path

import msgspec
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.progress import Progress
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.answer_service_pb2 import AnswerResponse
from sqlalchemy import select

from benchmarks.canned_config import canned_config
from benchmarks.child import child
from benchmarks.mini_deployment import demo_questions, mini_deployment
from router.errors import NotFound
from router.store.archive import SQLArchive
from router.store.database import Database
from router.store.schema import CALLS, RUNS
from router.trace.run import Run
from router.trace.values import Trajectory
from serving.files import write_atomically


class Figures(msgspec.Struct, frozen=True):
    """What was left after the kills."""

    kills: int
    acknowledged: int
    """Answers that clients received."""
    lost: list[str]
    """Runs of theirs that are not in the store as they were received, or not with all their calls."""
    stuck: list[str]
    """Runs that are still running for the store, with nobody working on them."""
    interrupted: int
    """Runs that a kill ended."""
    in_flight: list[str]
    """Calls that a kill cut, by the identifier under which the engines know them."""
    reconciliations: list[dict[str, object]]
    """The ledger against each engine's counters."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; 1 where anything was lost."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench crashes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="how many (default: 100)")
    parser.add_argument("--in-flight", type=int, default=4, metavar="N", help="questions at once (default: 4)")
    parser.add_argument("--longest", type=float, default=8.0, metavar="SECONDS", help="between kills (default: 8)")
    parser.add_argument("--canned", action="store_true", help="models that answer at once instead of real ones")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    figures = asyncio.run(_measured(given))
    encoded = msgspec.json.format(msgspec.json.encode(figures), indent=2)
    if given.json:
        write_atomically(given.json, encoded + b"\n")
    print(encoded.decode())
    verdicts = {str(row.get("verdict")) for row in figures.reconciliations}
    allowed = {"RECONCILIATION_VERDICT_EQUAL", "RECONCILIATION_VERDICT_WITHIN_BOUNDS"}
    return int(bool(figures.lost or figures.stuck) or not figures.acknowledged or not verdicts <= allowed)


async def _measured(given: argparse.Namespace) -> Figures:
    console, chance = Console(stderr=True), random.Random(given.seed)
    received: dict[str, AnswerResponse] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store, file = f"sqlite:///{folder}/runs.db", folder / "rolegate.toml"
        if given.canned:
            upstream = await stack.enter_async_context(child("benchmarks.canned_upstream"))
            base_url, retrieval = upstream.told
            canned_config(folder, base_url, retrieval, store)
        else:
            mini = await stack.enter_async_context(mini_deployment(lambda step: console.print(step, style="dim")))
            mini.config(file, store)
        questions = cycle(demo_questions(folder / "world", 500))
        with Progress(console=console) as progress:
            for _ in progress.track(range(given.kills), description="killing"):
                async with child("benchmarks.gateway_child", str(file)) as gateway:
                    asking = asyncio.create_task(_asked(gateway.told[0], questions, given.in_flight, received))
                    await asyncio.sleep(chance.uniform(0, given.longest))
                    gateway.kill()
                    await asking
        async with (
            child("benchmarks.gateway_child", str(file)) as gateway,
            AsyncClient(gateway.told[0]) as client,
        ):
            reconciled = await client.reconcile()
            return await _left(store, given.kills, received, [MessageToDict(row) for row in reconciled])


async def _asked(address: str, questions: "cycle[str]", in_flight: int, received: dict[str, AnswerResponse]) -> None:
    """Keep asking until the gateway is gone."""

    async def keep_asking(client: AsyncClient) -> None:
        while True:
            try:
                answer = await client.ask(next(questions), request_id=str(uuid.uuid4()))
            except GatewayError as error:
                if error.reason != "MALFORMED_OUTPUT":  # which a small model may write, and the gateway goes on
                    return
            else:
                received[answer.run_id] = answer

    async with AsyncClient(address) as client, asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(keep_asking(client))


async def _left(
    store: str, kills: int, received: dict[str, AnswerResponse], reconciled: list[dict[str, object]]
) -> Figures:
    database = await Database.open(store)
    try:
        archive = SQLArchive(database)
        lost = [run_id for run_id, answer in received.items() if not await _kept(archive, database, answer)]
        by_status = select(RUNS.c.run_id)
        cut = select(CALLS.c.run_id, CALLS.c.number).where(CALLS.c.outcome == "interrupted")
        stuck = await database.read(lambda at: at.scalars(by_status.where(RUNS.c.status == "running")).all())
        ended = await database.read(lambda at: at.scalars(by_status.where(RUNS.c.status == "interrupted")).all())
        calls = await database.read(lambda at: [f"{run_id}-{number}" for run_id, number in at.execute(cut)])
    finally:
        await database.close()
    return Figures(kills, len(received), lost, list(stuck), len(ended), calls, reconciled)


async def _kept(archive: SQLArchive, database: Database, answer: AnswerResponse) -> bool:
    """Whether the store has what a client received: the answer, and rows that sum up to its usage."""
    try:
        run: Run = await archive.load(answer.run_id)
    except NotFound:
        return False
    rows = await database.read(
        lambda at: at.execute(select(CALLS).where(CALLS.c.run_id == answer.run_id)).mappings().all()
    )
    tokens = sum((row["prompt_tokens"] or 0) + (row["completion_tokens"] or 0) for row in rows)
    return (
        isinstance(run.result, Trajectory)
        and (run.status, run.result.answer) == ("finished", answer.answer)
        and len(rows) == len(run.calls) == sum(usage.attempts for usage in answer.usage)
        and tokens == sum(usage.prompt_tokens + usage.completion_tokens for usage in answer.usage)
    )
