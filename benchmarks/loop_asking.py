"""Clients that ask a gateway about a mini world, and tell it the right answers; what is noted is not asked again."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from rich.console import Console
from rich.progress import Progress
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.executor_version_service_pb2 import ExecutorVersionState

from executor_sft.jsonl import JsonlFile
from executor_sft.miniworld.questions import Question
from router.protocol.scoring import exact_match

Stage = Literal["before", "logged", "swap", "after", "spoiled"]
_LAST_TRIALS_S = 10.0
"""What the last trials may take after the last answer."""
ENDED = ("EXECUTOR_VERSION_STATE_ACTIVE", "EXECUTOR_VERSION_STATE_ROLLED_BACK")
"""States of a version that the gate has decided on."""


class Asked(msgspec.Struct, frozen=True):
    """Some questions, one after the other or side by side."""

    questions: int
    right: int
    failed: int
    """Requests that ended in an error."""

    @property
    def exact_match(self) -> float:
        """The share of right answers."""
        return self.right / self.questions if self.questions else 0.0


class Noted(msgspec.Struct, frozen=True):
    """A line of the notes: what came of a request."""

    stage: Stage
    question_id: str
    right: bool
    failed: bool


class LoopAsking:
    """Asks so many at once."""

    def __init__(self, client: AsyncClient, in_flight: int, notes: JsonlFile, console: Console) -> None:
        self._client, self._in_flight, self._notes, self._console = client, in_flight, notes, console
        self._noted = [msgspec.json.decode(line, type=Noted) for line in notes.lines()]

    def asked(self, stage: Stage) -> Asked:
        """What has come of a stage."""
        noted = [each for each in self._noted if each.stage == stage]
        return Asked(len(noted), sum(each.right for each in noted), sum(each.failed for each in noted))

    async def all(self, stage: Stage, questions: Sequence[Question], title: str, *, feedback: bool) -> None:
        """Ask them all."""
        with Progress(console=self._console) as progress:
            waiting = iter(progress.track(self._left(stage, questions), description=title))
            await self._ask(stage, waiting, feedback=feedback)

    async def until_decided(self, stage: Stage, version: str, questions: Sequence[Question]) -> str:
        """Ask on until the gate has promoted the version or rolled it back; and what it came to."""
        ended = asyncio.Event()
        if (state := await self._state(version)) in ENDED:
            return state

        def wanted() -> Iterator[Question]:
            for question in self._left(stage, questions):
                if ended.is_set():
                    return
                yield question

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(version, ended))
            await self._ask(stage, wanted(), feedback=True)
            if not ended.is_set():
                await asyncio.sleep(_LAST_TRIALS_S)
                ended.set()
        return watching.result()

    async def _watch(self, version: str, ended: asyncio.Event) -> str:
        """The version's state, once it is one of `ENDED`, or when all was asked."""
        while True:
            state = await self._state(version)
            if state in ENDED or ended.is_set():
                ended.set()
                return state
            await asyncio.sleep(1)

    async def _state(self, version: str) -> str:
        (state,) = [one.state for one in await self._client.versions() if one.version == version]
        return ExecutorVersionState.Name(state)

    def _left(self, stage: Stage, questions: Sequence[Question]) -> list[Question]:
        noted = {each.question_id for each in self._noted if each.stage == stage}
        return [question for question in questions if question.id not in noted]

    async def _ask(self, stage: Stage, questions: Iterator[Question], *, feedback: bool) -> None:
        async def keep_asking() -> None:
            for question in questions:
                right = failed = False
                try:
                    answer = await self._client.ask(question.text)
                    if feedback:
                        await self._client.feedback(answer.run_id, gold_answer=question.answer)
                    right = exact_match(answer.answer, [question.answer])
                except GatewayError as error:
                    self._console.print(f"failed: {error}", style="red")
                    failed = error.reason != "MALFORMED_OUTPUT"  # which is a model's own way to be wrong
                self._note(Noted(stage, question.id, right, failed))

        async with asyncio.TaskGroup() as group:
            for _ in range(self._in_flight):
                group.create_task(keep_asking())

    def _note(self, noted: Noted) -> None:
        self._notes.append(msgspec.json.encode(noted))
        self._noted.append(noted)
