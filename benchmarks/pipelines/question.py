"""A question as a pipeline without a gateway answers it: the same prompts, calls and searches, read by simple means.

No ledger, no budgets, no retries, no citations. A model that breaks the protocol fails the question.
"""

import asyncio
import itertools
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from html import escape, unescape
from pathlib import Path
from typing import Any

import msgspec

import serving
from benchmarks.gateway import MAX_TOKENS, MODELS
from benchmarks.pipelines.run_log import RunLog
from router.errors import RolegateError
from router.protocol import Passage

_PROMPTS = Path(serving.__path__[0]) / "prompts" / "full"
_STOP = {"delegation": ["</search>"], "execution": ["</search>", "</evidence>"], "answer": ["</answer>"]}
_SEARCH = re.compile(r"<search>(.*?)(?:</search>|$)", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL)
_EVIDENCE = re.compile(r"<evidence>(.*?)(?:</evidence>|$)", re.DOTALL)
_SEARCHES = 2
"""Of an executor at most; then it reports."""


class Usage(msgspec.Struct):
    """Tokens of a call, as the engine counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Delta(msgspec.Struct):
    """A piece of a choice."""

    content: str | None = None


class Choice(msgspec.Struct):
    """An output, or a piece of it."""

    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """An event of a stream, as far as it is read."""

    choices: list[Choice] = []
    usage: Usage | None = None


_chunk = msgspec.json.Decoder(Chunk).decode
_DATA, _DONE = b"data: ", b"[DONE]"


@dataclass(slots=True)
class Said:
    """The output of a call, event by event."""

    texts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)

    def take(self, event: bytes) -> None:
        """Read a server-sent event."""
        if event.startswith(_DATA) and (data := event[len(_DATA) :]) != _DONE:
            chunk = _chunk(data)
            self.usage = chunk.usage or self.usage
            for choice in chunk.choices:
                self.finish_reason = choice.finish_reason or self.finish_reason
                if choice.delta.content:
                    self.texts.append(choice.delta.content)


Call = Callable[[dict[str, Any], str], Awaitable[Said]]
"""Makes a call, from its body and the value of `X-Request-Id`."""
Search = Callable[[str], Awaitable[Sequence[Passage]]]


@dataclass(frozen=True, slots=True)
class Report:
    """What an executor found for a sub-query."""

    sub_query: str
    answer: str
    evidence: str
    queries: list[str]


@dataclass(slots=True)
class Answered:
    """A question with its answer."""

    run_id: str
    question: str
    answer: str = ""
    reports: list[Report] = field(default_factory=list)
    usage: dict[str, list[int]] = field(default_factory=dict)
    """By role: calls, tokens read, tokens written."""
    duration_s: float = 0.0


class Pipeline:
    """Answers questions, any number at once."""

    def __init__(self, call: Call, search: Search, log: RunLog | None = None) -> None:
        """`log`: None keeps nothing."""
        self._call, self._search, self._log = call, search, log
        self._numbers = itertools.count()
        self._prompts = {role: (_PROMPTS / f"{role}.txt").read_text("utf-8").strip() for role in MODELS}

    async def answer(self, question: str) -> Answered:
        """Delegate, search, and answer from the reports; on disk when this returns."""
        begun, run = time.monotonic(), Answered(f"run-{next(self._numbers):016x}", question)
        told = self._opening("delegation", escape(question, quote=False))
        while sub_queries := _sub_queries(said := await self._ask(run, "delegation", told)):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._execute(run, sub_query)) for sub_query in sub_queries]
            reports = [task.result() for task in tasks]
            run.reports += reports
            told += [_message("assistant", said), _message("user", _results(reports))]
        asked = _element("question", question) + _results(run.reports)
        run.answer = _found(_ANSWER, await self._ask(run, "answer", self._opening("answer", asked)))
        run.duration_s = time.monotonic() - begun
        if self._log:
            self._log.write(run)
            await self._log.sync()
        return run

    async def _execute(self, run: Answered, sub_query: str) -> Report:
        queries, told = list[str](), self._opening("execution", escape(sub_query, quote=False))
        while query := _read(_SEARCH, said := await self._ask(run, "execution", told)):
            queries.append(query)
            passages = await self._search(query)
            last = "\nNo searches are left. Write the report now." if len(queries) == _SEARCHES else ""
            told += [_message("assistant", said), _message("user", _documents(passages) + last)]
        return Report(sub_query, _found(_ANSWER, said), _found(_EVIDENCE, said), queries)

    def _opening(self, role: str, text: str) -> list[dict[str, str]]:
        return [_message("system", self._prompts[role]), _message("user", text)]

    async def _ask(self, run: Answered, role: str, messages: list[dict[str, str]]) -> str:
        """One call, on record before and after."""
        counts = run.usage.setdefault(role, [0, 0, 0])
        counts[0] += 1
        name = f"{run.run_id}-{sum(calls for calls, _, _ in run.usage.values())}"
        body: dict[str, Any] = {"model": MODELS[role], "messages": messages, "max_tokens": MAX_TOKENS}
        body |= {"temperature": 0.0, "top_p": 1.0, "stop": _STOP[role]}
        if self._log:
            self._log.write((name, role, body["model"], time.time()))
        said = await self._call(body, name)
        text = "".join(said.texts)
        if self._log:
            self._log.write((name, text, said.finish_reason, said.usage, time.time()))
        if said.finish_reason != "stop" or not said.usage.prompt_tokens:
            raise RolegateError(f"{name}: {said}")
        counts[1] += said.usage.prompt_tokens
        counts[2] += said.usage.completion_tokens
        return text


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _element(tag: str, text: str) -> str:
    return f"<{tag}>{escape(text, quote=False)}</{tag}>"


def _read(tag: re.Pattern[str], said: str) -> str | None:
    """The text in a tag, if there is one."""
    return unescape(found[1]).strip() if (found := tag.search(said)) else None


def _found(tag: re.Pattern[str], said: str) -> str:
    if (text := _read(tag, said)) is None:
        raise RolegateError(f"neither a search nor a report: {said!r}")
    return text


def _sub_queries(said: str) -> list[str]:
    body = _read(_SEARCH, said)
    return list(json.loads(body)) if body and body.startswith("[") else [body] if body else []


def _documents(passages: Sequence[Passage]) -> str:
    shown = "".join(
        f'<document index="{index}">{_element("title", passage.title)}{_element("text", passage.text)}</document>'
        for index, passage in enumerate(passages)
    )
    return f"<documents>{shown}</documents>"


def _results(reports: Sequence[Report]) -> str:
    shown = "".join(
        f'<result index="{index}">{_element("request", report.sub_query)}{_element("answer", report.answer)}'
        f"{_element('evidence', report.evidence)}</result>"
        for index, report in enumerate(reports)
    )
    return f"<search_results>{shown}</search_results>"
