"""Interface of a language model: a protocol with three methods, and frozen values."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

import msgspec

from router.errors import UpstreamError

_TOOLS_CHARS = 1500
"""Max characters of a chat template's instructions for tools; Hermes' and Llama's have half."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Sampling(msgspec.Struct, frozen=True):
    """Sampling parameters of a call."""

    max_tokens: int = 1024
    """Max tokens of the output, reasoning included."""
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


class Function(msgspec.Struct, frozen=True):
    """A tool that a model may call."""

    name: str
    """Letters, digits, `_` and `-`."""
    description: str
    parameters: str
    """JSON schema of its arguments."""


class Prompt(msgspec.Struct, frozen=True):
    """Input of one call."""

    messages: tuple[Message, ...]
    sampling: Sampling
    stop: tuple[str, ...] = ()
    """Strings that end the output; the one that is met always belongs to the text."""
    request_id: str = ""
    """Name under which the endpoint may log the call; empty for none."""
    pattern: str | None = None
    """Regular expression that constrains the output without its reasoning, if the endpoint can."""
    tools: tuple[Function, ...] = ()
    """Tools for models with native tool calls. Messages and outputs hold calls as text,
    `<call tool="…">…</call>`, in any case.
    """
    unstopped: bool = False
    """Whether stop strings are not sent, because the endpoint stops at them within reasoning."""

    @property
    def texts(self) -> tuple[Message, ...]:
        """All that the model reads: the messages, and one with the tools in JSON, no shorter than
        any chat template writes them.
        """
        if not self.tools:
            return self.messages
        tools = [(tool.name, tool.description, json.loads(tool.parameters)) for tool in self.tools]
        return (*self.messages, Message("user", json.dumps(tools, indent=8) + " " * _TOOLS_CHARS))


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one call as its engine counts them; None where it does not say.

    `OpenedCall.allows` tells whether the counts are plausible.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Part of `prompt_tokens`."""
    reasoning_tokens: int | None = None
    """Part of `completion_tokens`."""
    lower_bound: bool = False
    """True if the client left before the engine's last count, so more may have been spent."""
    estimated: bool = False
    """True if the model's tokenizer counted what had arrived, as the engine did not say."""

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


TOKEN_COUNTS = tuple(
    field.name for field in msgspec.structs.fields(Usage) if field.type is not bool
)
"""The fields of `Usage` that are counts."""


class TokenIds(msgspec.Struct, frozen=True):
    """Token ids of a call, from its engine."""

    prompt: tuple[int, ...]
    """Chat template included."""
    completion: tuple[int, ...]
    """As sampled, including reasoning and text after a stop string."""
    logprobs: tuple[float, ...] | msgspec.UnsetType = msgspec.UNSET
    """Natural logarithms of the probabilities of `completion`; set if they were asked for."""


class Completion(msgspec.Struct, frozen=True, gc=False):
    """A whole output."""

    text: str
    finish_reason: str
    """`stop`, `length` and others, as OpenAI's API names them."""
    reasoning: str = ""
    usage: Usage | None = None
    overran: bool = False
    """True if the engine wrote past a stop string, and the text was cut here."""
    tokens: TokenIds | msgspec.UnsetType = msgspec.UNSET
    """Set if they were asked for, which only training does."""
    unclosed: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    """Set if the endpoint stopped before any content or within a thought."""

    @property
    def stopped_thinking(self) -> bool:
        """True if the endpoint probably stopped at a stop string within its reasoning."""
        reasoned = self.reasoning or (self.usage and self.usage.reasoning_tokens)
        silent = bool(reasoned) and not self.text.strip()
        return self.finish_reason == "stop" and (silent or self.unclosed is True)


class Delta(msgspec.Struct, frozen=True, gc=False):
    """Piece of a streamed output. The last one has the usage, also of a stream that was cut."""

    text: str = ""
    reasoning: str = ""
    usage: Usage | None = None


OnDelta = Callable[[Delta], None]
"""Receives each piece as it arrives, in the call's context but in no task; an error that it raises
ends the call.
"""


class Model(Protocol):
    """One model at one endpoint.

    `complete` and `stream` raise `UpstreamUnavailable`, `UpstreamRefused` or
    `UpstreamProtocolError`, and stop the work upstream when cancelled. They make exactly one
    attempt: retries and the ledger are the caller's.
    """

    @property
    def name(self) -> str:
        """The model's name at its endpoint."""

    @property
    def endpoint(self) -> str:
        """The endpoint's address."""

    async def complete(self, prompt: Prompt) -> Completion:
        """Return the whole output."""

    async def stream(
        self,
        prompt: Prompt,
        on_delta: OnDelta,
        *,
        live: bool = True,
    ) -> Completion:
        """Return the whole output, and pass it on as it is written. `live`: pass each piece on
        immediately; otherwise pieces after the first may be grouped.
        """

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """Count the tokens of `prompt`, chat template included, and of `text` as its output, with
        the model's tokenizer; None if it is unavailable. Raises nothing.
        """


_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_HALF = re.compile("[\ud800-\udfff]")
_MAX_PAIRS = 1000
"""Max surrogate pairs of a text that are joined; readers of JSON join them already."""


def encodable(text: str) -> str:
    """Return a text that every Unicode encoding can represent: surrogate pairs are joined, and
    single surrogates become U+FFFD.
    """
    return text if text.isascii() else _HALF.sub("\ufffd", _PAIR.sub(_joined, text, _MAX_PAIRS))


def _joined(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16", "surrogatepass").decode("utf-16")


def largest(earlier: Usage | None, later: Usage | None) -> Usage | None:
    """Return the larger of each count, as a stream's usage never shrinks."""
    if earlier is None or later is None:
        return later or earlier
    counts = {}
    for name in TOKEN_COUNTS:
        values = (getattr(earlier, name), getattr(later, name))
        counts[name] = max((count for count in values if count is not None), default=None)
    return msgspec.structs.replace(later, **counts)


def end_at_stop(
    text: str,
    stop: tuple[str, ...],
    finish_reason: str,
    matched: str | None,
) -> tuple[str, str]:
    """Return `text` up to the end of its first stop string, and its finish reason.

    Engines differ: some ignore stop strings, some drop the one that was met, few say which it was
    (`matched`).
    """
    ends = [text.find(string) + len(string) for string in stop if string in text]
    if ends:
        return text[: min(ends)], "stop"
    if finish_reason == "stop" and matched in stop:
        return f"{text}{matched}", "stop"
    return text, finish_reason


Answer = Completion | UpstreamError | str


class ScriptedModel:
    """Model with scripted answers, in order or by a function of the prompt; errors are raised."""

    def __init__(
        self, answers: Iterable[Answer] | Callable[[Prompt], Answer], name: str = "scripted"
    ) -> None:
        self._answer = answers if callable(answers) else None
        self._queue = iter(()) if callable(answers) else iter(answers)
        self.name = name
        self.endpoint = f"scripted://{name}"
        self.prompts: list[Prompt] = []
        """All prompts that were sent, in order."""

    async def complete(self, prompt: Prompt) -> Completion:
        """Return the next answer."""
        await asyncio.sleep(0)
        self.prompts.append(prompt)
        answer = self._answer(prompt) if self._answer else next(self._queue)
        if isinstance(answer, UpstreamError):
            raise answer
        if isinstance(answer, Completion):
            return answer
        text, finish_reason = end_at_stop(answer, prompt.stop, "stop", None)
        return Completion(text, finish_reason, usage=await self.count(prompt, text))

    async def count(self, prompt: Prompt, text: str) -> Usage:
        """Count words as tokens."""
        read = sum(len(message.content.split()) for message in prompt.messages)
        return Usage(read, len(text.split()))

    async def stream(
        self,
        prompt: Prompt,
        on_delta: OnDelta,
        *,
        live: bool = True,
    ) -> Completion:
        """Return the next answer, and pass it on word by word."""
        completion = await self.complete(prompt)
        if completion.reasoning:
            on_delta(Delta(reasoning=completion.reasoning))
        for word in re.findall(r"\s*\S+|\s+", completion.text):
            on_delta(Delta(word))
        on_delta(Delta(usage=completion.usage))
        return completion
