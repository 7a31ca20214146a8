"""A question as a pipeline without a gateway answers it: the same prompts, calls and searches, read
by simple means, with an append-only log. No ledger, budgets, retries or citations; a model that
breaks the protocol fails the question.
"""

import asyncio
import itertools
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
from rolegate.v1.answer_service_pb2 import ANSWER_OUTCOME_ANSWERED, AnswerResponse
from rolegate.v1.evidence_pb2 import EXECUTION_OUTCOME_REPORTED, EvidencePoint, SubQueryResult
from rolegate.v1.usage_pb2 import ROLE_ANSWER, ROLE_DELEGATION, ROLE_EXECUTION, RoleUsage

import serving
from benchmarks.gateway import MAX_TOKENS, MODELS
from router.errors import RolegateError
from router.protocol import Passage, Report, prompts

_PROMPTS = Path(serving.__path__[0]) / "prompts" / "full"
_ROLES = {"delegation": ROLE_DELEGATION, "execution": ROLE_EXECUTION, "answer": ROLE_ANSWER}
_STOP = {
    "delegation": ["</search>"],
    "execution": ["</search>", "</evidence>"],
    "answer": ["</answer>"],
}
_TAGS = {
    tag: re.compile(f"<{tag}>(.*?)(?:</{tag}>|$)", re.DOTALL)
    for tag in ("search", "answer", "evidence")
}
_SEARCHES = 2
"""Of an executor at most; then it reports."""


class Said(msgspec.Struct):
    """The output of a call."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


Call = Callable[[dict[str, Any], str], Awaitable[Said]]
"""Makes a call, from its body and its name."""
Search = Callable[[str], Awaitable[Sequence[Passage]]]


class RunLog:
    """An append-only log: a record is one write on the event loop; a sync, in a thread, is
    shared by all who wait.
    """

    def __init__(self, file: Path) -> None:
        self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._waiting: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Task[None] | None = None

    def write(self, *record: object) -> None:
        """Append a record; it survives a kill when this returns."""
        os.write(self._fd, msgspec.json.encode(record) + b"\n")

    async def sync(self) -> None:
        """Wait for a sync that begins from now on; then what was written survives a power cut,
        too.
        """
        loop = asyncio.get_running_loop()
        self._waiting.append(done := loop.create_future())
        if self._syncing is None:
            self._syncing = loop.create_task(self._sync())
        await done

    async def _sync(self) -> None:
        while self._waiting:
            waiting = self._waiting
            self._waiting = []
            await asyncio.get_running_loop().run_in_executor(None, os.fdatasync, self._fd)
            for each in waiting:
                if not each.done():
                    each.set_result(None)
        self._syncing = None


class Pipeline:
    """Answers questions, any number at once."""

    def __init__(self, call: Call, search: Search, log: RunLog | None = None) -> None:
        """`log`: None keeps nothing."""
        self._call = call
        self._search = search
        self._log = log
        self._numbers = itertools.count()
        self._prompts = {
            role: (_PROMPTS / f"{role}.txt").read_text("utf-8").strip() for role in MODELS
        }

    async def answer(self, question: str) -> AnswerResponse:
        """Delegate, search, and answer from the reports; on disk when this returns. Raises
        `RolegateError`.
        """
        begun = time.monotonic_ns()
        run = AnswerResponse(run_id=f"run-{next(self._numbers):016x}")
        used = {
            role: run.usage.add(role=_ROLES[role], model=model) for role, model in MODELS.items()
        }
        told = self._opening("delegation", prompts.request(question))
        pairs = list[tuple[str, Report]]()
        while sub_queries := _sub_queries(
            said := await self._ask(run.run_id, used, "delegation", told)
        ):
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._execute(run.run_id, used, each)) for each in sub_queries
                ]
            run.results.extend(results := [task.result() for task in tasks])
            pairs += (
                found := [
                    (each.sub_query, Report(each.answer, (each.evidence[0].text,)))
                    for each in results
                ]
            )
            told += _turn(said, prompts.search_results(found))
        asked = self._opening("answer", prompts.answer_request(question, pairs))
        run.answer = _found("answer", await self._ask(run.run_id, used, "answer", asked))
        run.outcome = ANSWER_OUTCOME_ANSWERED
        run.duration.FromNanoseconds(time.monotonic_ns() - begun)
        if self._log:
            self._log.write(run.run_id, question, run.SerializeToString())
            await self._log.sync()
        return run

    async def _execute(
        self, run_id: str, used: dict[str, RoleUsage], sub_query: str
    ) -> SubQueryResult:
        report = SubQueryResult(sub_query=sub_query)
        told = self._opening("execution", prompts.request(sub_query))
        while query := _inside("search", said := await self._ask(run_id, used, "execution", told)):
            report.search_queries.append(query)
            passages = await self._search(query)
            told += _turn(
                said, prompts.documents(passages, last=len(report.search_queries) == _SEARCHES)
            )
        report.answer = _found("answer", said)
        report.outcome = EXECUTION_OUTCOME_REPORTED
        report.evidence.append(EvidencePoint(text=_found("evidence", said)))
        return report

    def _opening(self, role: str, text: str) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": self._prompts[role]},
            {"role": "user", "content": text},
        ]

    async def _ask(
        self, run_id: str, used: dict[str, RoleUsage], role: str, messages: list[dict[str, str]]
    ) -> str:
        """One call, on record before and after."""
        usage = used[role]
        usage.attempts += 1
        name = f"{run_id}-{sum(each.attempts for each in used.values())}"
        body: dict[str, Any] = {
            "model": MODELS[role],
            "messages": messages,
            "max_tokens": MAX_TOKENS,
        }
        body |= {"temperature": 0.0, "top_p": 1.0, "stop": _STOP[role]}
        if self._log:
            self._log.write(name, role, body["model"], time.time())
        said = await self._call(body, name)
        if self._log:
            self._log.write(name, said, time.time())
        if said.finish_reason != "stop" or not said.prompt_tokens:
            raise RolegateError(f"{name}: {said}")
        usage.prompt_tokens += said.prompt_tokens
        usage.completion_tokens += said.completion_tokens
        return said.text


def _turn(said: str, told: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": said}, {"role": "user", "content": told}]


def _inside(tag: str, said: str) -> str:
    return unescape(found[1]).strip() if (found := _TAGS[tag].search(said)) else ""


def _found(tag: str, said: str) -> str:
    if not (text := _inside(tag, said)):
        raise RolegateError(f"neither a search nor {tag}: {said!r}")
    return text


def _sub_queries(said: str) -> list[str]:
    body = _inside("search", said)
    return list(json.loads(body)) if body.startswith("[") else [body] if body else []
