"""Clients of the training loop."""

from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.executor_version_service_pb2 import ExecutorVersion

from benchmarks.loop import QuestionRunner
from executor_sft.miniworld.questions import MiniQuestion

VERSION = "executor-000001"


class Gateway:
    """Gateway that knows every second answer and fails on given questions."""

    def __init__(self, fails: tuple[str, ...] = (), decides_at: int = 0, reason: str = "") -> None:
        self.asked: list[str] = []
        self.gold: list[str] = []
        self._fails = fails
        self._decides_at = decides_at
        self._reason = reason

    async def ask(self, question: str) -> Any:
        """Answer, or fail."""
        self.asked.append(question)
        if question in self._fails:
            raise GatewayError("away", grpc.StatusCode.UNAVAILABLE, self._reason)
        return SimpleNamespace(
            answer=question if int(question) % 2 else "no", run_id=f"run-{question}"
        )

    async def feedback(self, run_id: str, *, right_answer: str) -> None:
        """Keep the right answer."""
        self.gold.append(right_answer)

    async def versions(self) -> list[ExecutorVersion]:
        """Return one version, which becomes active after some answers."""
        active = self._decides_at and len(self.asked) >= self._decides_at
        state = "EXECUTOR_VERSION_STATE_ACTIVE" if active else "EXECUTOR_VERSION_STATE_CANARY"
        return [ExecutorVersion(version=VERSION, state=state)]


QUESTIONS = [
    cast(MiniQuestion, SimpleNamespace(id=f"q{number}", text=str(number), answer=str(number)))
    for number in range(9)
]


async def asked(gateway: Gateway, *, feedback: bool = True) -> tuple[int, int, int]:
    """Return the counts of the logged questions."""
    counts = await QuestionRunner(cast(AsyncClient, gateway), 2).all(
        "logged", QUESTIONS, feedback=feedback
    )
    return counts.questions, counts.right, counts.failed


async def test_every_question_is_asked_once() -> None:
    """Right answers are sent as feedback, and failed requests are counted."""
    gateway = Gateway(fails=("3",))
    assert await asked(gateway) == (9, 3, 1)
    assert sorted(gateway.asked) == [str(number) for number in range(9)]
    assert sorted(gateway.gold) == [str(number) for number in range(9) if number != 3]


async def test_malformed_output_is_a_wrong_answer() -> None:
    """It is no failed request."""
    assert await asked(Gateway(fails=("3",), reason="MALFORMED_OUTPUT")) == (9, 3, 0)


async def test_held_out_answers_are_not_sent() -> None:
    """They are not sent as feedback, so that no training sees them."""
    gateway = Gateway()
    assert await asked(gateway, feedback=False) == (9, 4, 0)
    assert gateway.gold == []


@pytest.mark.parametrize(("decides_at", "state"), [(4, "ACTIVE"), (0, "CANARY")])
async def test_questions_are_asked_until_there_is_a_decision(
    decides_at: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients ask until the gate has decided or no question is left."""
    monkeypatch.setattr("benchmarks.loop._LAST_TRIALS_S", 0.01)
    gateway = Gateway(decides_at=decides_at)
    answers, sums = await QuestionRunner(cast(AsyncClient, gateway), 2).until_decided(
        "swap", VERSION, QUESTIONS
    )
    assert answers == f"EXECUTOR_VERSION_STATE_{state}"
    assert sums.questions == len(gateway.asked) <= 9
