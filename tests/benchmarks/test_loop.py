"""The clients of the loop ask every question once, also after a stop."""

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.executor_version_service_pb2 import ExecutorVersion

from benchmarks.loop import Asking, Stage
from executor_sft.jsonl import JsonlFile
from executor_sft.miniworld.questions import Question

VERSION = "executor-000001"


class Gateway:
    """Knows every second answer, and fails where it is told to."""

    def __init__(
        self, fails: tuple[str, ...] = (), stops_at: int | None = None, decides_at: int = 0, reason: str = ""
    ) -> None:
        self.asked: list[str] = []
        self.gold: list[str] = []
        self._fails, self._stops_at, self._decides_at, self._reason = fails, stops_at, decides_at, reason

    async def ask(self, question: str) -> Any:
        """An answer, where there is one."""
        if len(self.asked) == self._stops_at:
            raise RuntimeError("stopped")
        self.asked.append(question)
        if question in self._fails:
            raise GatewayError("away", grpc.StatusCode.UNAVAILABLE, self._reason)
        return SimpleNamespace(answer=question if int(question) % 2 else "no", run_id=f"run-{question}")

    async def feedback(self, run_id: str, *, gold_answer: str) -> None:
        """Take it."""
        self.gold.append(gold_answer)

    async def versions(self) -> list[ExecutorVersion]:
        """One, which becomes active after some answers."""
        active = self._decides_at and len(self.asked) >= self._decides_at
        state = "EXECUTOR_VERSION_STATE_ACTIVE" if active else "EXECUTOR_VERSION_STATE_CANARY"
        return [ExecutorVersion(version=VERSION, state=state)]


QUESTIONS = [
    cast(Question, SimpleNamespace(id=f"q{number}", text=str(number), answer=str(number))) for number in range(9)
]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where answers are noted."""
    return tmp_path / "asked.jsonl"


async def asked(gateway: Gateway, path: Path) -> tuple[int, int, int]:
    """What has come of the logged questions, with those that were asked before."""
    with closing(JsonlFile(path)) as notes:
        asking = Asking(cast(AsyncClient, gateway), 2, notes)
        await asking.all("logged", QUESTIONS, feedback=True)
        found = asking.asked("logged")
        return found.questions, found.right, found.failed


async def test_every_question_once(notes: Path) -> None:
    """Right answers are told, and requests that fail are counted."""
    gateway = Gateway(fails=("3",))
    assert await asked(gateway, notes) == (9, 3, 1)
    assert sorted(gateway.asked) == [str(number) for number in range(9)]
    assert sorted(gateway.gold) == [str(number) for number in range(9) if number != 3]


async def test_a_model_that_cannot_be_understood_is_wrong(notes: Path) -> None:
    """Which is no request that fails: nothing but the model is to blame."""
    assert await asked(Gateway(fails=("3",), reason="MALFORMED_OUTPUT"), notes) == (9, 3, 0)


async def test_a_loop_that_was_stopped(notes: Path) -> None:
    """Goes on with what was not answered; a request that failed stays one."""
    first, second = Gateway(fails=("1",), stops_at=4), Gateway()
    with pytest.raises(ExceptionGroup):
        await asked(first, notes)
    with notes.open("ab") as file:
        file.write(b'{"stage":"log')  # a line that a kill has torn
    assert await asked(second, notes) == (9, 3, 1)
    assert sorted(first.asked + second.asked) == [str(number) for number in range(9)]


async def test_stages_are_apart(notes: Path) -> None:
    """The same questions are asked before and after."""
    gateway = Gateway()
    with closing(JsonlFile(notes)) as file:
        asking = Asking(cast(AsyncClient, gateway), 2, file)
        stages: tuple[Stage, ...] = "before", "after"
        for stage in stages:
            await asking.all(stage, QUESTIONS[:3], feedback=False)
    assert (len(gateway.asked), gateway.gold) == (6, [])


@pytest.mark.parametrize(("decides_at", "state"), [(4, "ACTIVE"), (0, "CANARY")])
async def test_asking_until_there_is_a_decision(
    notes: Path, decides_at: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or until nothing is left to ask; a decision that was seen is not asked for again."""
    monkeypatch.setattr("benchmarks.loop._LAST_TRIALS_S", 0.0)
    gateway = Gateway(decides_at=decides_at)
    with closing(JsonlFile(notes)) as file:
        asking = Asking(cast(AsyncClient, gateway), 2, file)
        for _ in range(2):
            assert await asking.until_decided("swap", VERSION, QUESTIONS) == f"EXECUTOR_VERSION_STATE_{state}"
        assert asking.asked("swap").questions == len(gateway.asked) <= 9
