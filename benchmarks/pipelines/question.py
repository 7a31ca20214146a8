"""A pipeline that answers questions without a gateway. It makes the same model calls, with the same
prompts, and the same searches as the gateway. It parses replies in the simplest way, and has an
append-only log, but no ledger, budgets, retries or citations. If a model's output is malformed, the
question fails.
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
from rolegate.v1.evidence_pb2 import EXECUTION_OUTCOME_REPORTED, SubQueryResult
from rolegate.v1.usage_pb2 import ROLE_ANSWER, ROLE_DELEGATION, ROLE_EXECUTION

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
_MAX_SEARCHES = 2
"""An executor must report after this number of searches."""


class PipelineCompletion(msgspec.Struct):
    """Result of a model call."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


Call = Callable[[dict[str, Any], str], Awaitable[PipelineCompletion]]
"""Function that makes a model call. It takes the body of the request and the request id."""
Search = Callable[[str], Awaitable[Sequence[Passage]]]
"""Function that returns the passages for a query."""


class PipelineLog:
    """Append-only log of a pipeline. Writing a record is one system call on the event loop. Syncing
    to disk runs in a thread; one sync serves all waiting callers.
    """

    def __init__(self, file: Path) -> None:
        self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._waiting = list[asyncio.Future[None]]()
        self._syncing: asyncio.Task[None] | None = None

    def write(self, *record: object) -> None:
        """Append a record to the file. It is not lost if the process is killed afterwards."""
        os.write(self._fd, msgspec.json.encode(record) + b"\n")

    async def sync(self) -> None:
        """Wait until all records written so far are on disk. They then survive a power failure."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._waiting.append(done)
        if self._syncing is None:
            self._syncing = loop.create_task(self._sync())
        await done

    async def _sync(self) -> None:
        while self._waiting:
            waiting = self._waiting
            self._waiting = []
            await asyncio.get_running_loop().run_in_executor(None, os.fdatasync, self._fd)
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        self._syncing = None


class Pipeline:
    """Answers questions, any number of them concurrently."""

    def __init__(self, call: Call, search: Search, log: PipelineLog) -> None:
        self._call = call
        self._search = search
        self._log = log
        self._numbers = itertools.count()
        self._prompts = {
            role: (_PROMPTS / f"{role}.txt").read_text("utf-8").strip() for role in MODELS
        }

    async def answer(self, question: str) -> AnswerResponse:
        """Answer a question as the gateway does: delegate, let executors search, and answer from
        their reports. The run is logged to disk before the method returns. Raises `RolegateError`
        if a model call fails or its output is malformed.
        """
        begun = time.monotonic_ns()
        run = AnswerResponse(run_id=f"run-{next(self._numbers):016x}")
        for role, model in MODELS.items():
            run.usage.add(role=_ROLES[role], model=model)

        messages = self._opening("delegation", prompts.request(question))
        reports = list[tuple[str, Report]]()
        while True:
            text = await self._ask(run, "delegation", messages)
            if not (sub_queries := _sub_queries(text)):
                break
            results = await asyncio.gather(
                *(self._execute(run, sub_query) for sub_query in sub_queries)
            )
            run.results.extend(results)
            round_reports = [
                (result.sub_query, Report(result.answer, (result.evidence[0].text,)))
                for result in results
            ]
            reports += round_reports
            messages += _turn(text, prompts.search_results(round_reports))

        messages = self._opening("answer", prompts.answer_request(question, reports))
        run.answer = _required("answer", await self._ask(run, "answer", messages))
        run.outcome = ANSWER_OUTCOME_ANSWERED
        run.duration.FromNanoseconds(time.monotonic_ns() - begun)
        self._log.write(run.run_id, question, run.SerializeToString())
        await self._log.sync()
        return run

    async def _execute(self, run: AnswerResponse, sub_query: str) -> SubQueryResult:
        report = SubQueryResult(sub_query=sub_query, outcome=EXECUTION_OUTCOME_REPORTED)
        messages = self._opening("execution", prompts.request(sub_query))
        while True:
            text = await self._ask(run, "execution", messages)
            if not (query := _inside("search", text)):
                break
            report.search_queries.append(query)
            passages = await self._search(query)
            last = len(report.search_queries) == _MAX_SEARCHES
            messages += _turn(text, prompts.documents(passages, last=last))
        report.answer = _required("answer", text)
        report.evidence.add(text=_required("evidence", text))
        return report

    def _opening(self, role: str, text: str) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": self._prompts[role]},
            {"role": "user", "content": text},
        ]

    async def _ask(self, run: AnswerResponse, role: str, messages: list[dict[str, str]]) -> str:
        """Make a model call, log it before and after, and return the model's text."""
        usage = run.usage[list(MODELS).index(role)]
        usage.attempts += 1
        name = f"{run.run_id}-{sum(role_usage.attempts for role_usage in run.usage)}"
        body: dict[str, Any] = {
            "model": MODELS[role],
            "messages": messages,
            "max_tokens": MAX_TOKENS,
            "temperature": 0.0,
            "top_p": 1.0,
            "stop": _STOP[role],
        }
        self._log.write(name, role, body["model"], time.time())
        completion = await self._call(body, name)
        self._log.write(name, completion, time.time())
        if completion.finish_reason != "stop" or not completion.prompt_tokens:
            raise RolegateError(
                f"{name}: the reply ended with {completion.finish_reason!r} instead of 'stop', or "
                "its prompt tokens were not counted; raise benchmarks.gateway.MAX_TOKENS, or use "
                "an engine that counts them"
            )
        usage.prompt_tokens += completion.prompt_tokens
        usage.completion_tokens += completion.completion_tokens
        return completion.text


def _turn(text: str, reply: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}, {"role": "user", "content": reply}]


def _inside(tag: str, text: str) -> str:
    """Return the text inside the first element with this tag; empty if there is none."""
    match = _TAGS[tag].search(text)
    return unescape(match[1]).strip() if match else ""


def _required(tag: str, text: str) -> str:
    """Return the text inside the element with this tag. Raises `RolegateError` if there is none."""
    if not (content := _inside(tag, text)):
        raise RolegateError(
            f"a model wrote {text!r} without <search> or <{tag}>; correct benchmarks.gateway.canned"
        )
    return content


def _sub_queries(text: str) -> list[str]:
    body = _inside("search", text)
    return list(json.loads(body)) if body else []
