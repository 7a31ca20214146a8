"""A language model, as the rest of the code sees it: two methods, frozen values."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

import msgspec

from router.errors import UpstreamError

_TOOLS_CHARS = 1500
"""Characters in which chat templates say how tools are called, at most; Hermes' and Llama's
take less than half.
"""


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Sampling(msgspec.Struct, frozen=True):
    """Sampling parameters of a call."""

    max_tokens: int = 1024
    """The most tokens to write, reasoning included."""
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


class Function(msgspec.Struct, frozen=True):
    """A tool that a model may call."""

    name: str
    """Letters, digits, `_` and `-`."""
    description: str
    parameters: str
    """The JSON schema of its arguments."""


class Prompt(msgspec.Struct, frozen=True):
    """One call: what is sent upstream."""

    messages: tuple[Message, ...]
    sampling: Sampling
    stop: tuple[str, ...] = ()
    """Strings that end the output; the one that was met is part of it, whatever the engine does."""
    request_id: str = ""
    """The name under which the endpoint may log the call; empty for none."""
    pattern: str | None = None
    """A regular expression that the output has to match, reasoning apart, where the endpoint
    can see to that.
    """
    tools: tuple[Function, ...] = ()
    """For models with tool calls of their own. In messages and outputs these stand as text, `<call
    tool="…">…</call>`, whatever the endpoint makes of them.
    """
    unstopped: bool = False
    """Whether the endpoint is not sent the stop strings, because it meets them within its
    reasoning.
    """
    raw: bool = False
    """Whether thoughts that the model writes stay in its text; otherwise they are a part of the
    reasoning.
    """

    @property
    def texts(self) -> tuple[Message, ...]:
        """The messages, with the tools as one more, in JSON as long as that of any template:
        all that is read.
        """
        if not self.tools:
            return self.messages
        told = [(tool.name, tool.description, json.loads(tool.parameters)) for tool in self.tools]
        return (*self.messages, Message("user", json.dumps(told, indent=8) + " " * _TOOLS_CHARS))


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one call, as its engine counts them; None where it did not say. `OpenedCall.allows`
    tells whether that can be.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """A part of `prompt_tokens`."""
    reasoning_tokens: int | None = None
    """A part of `completion_tokens`."""
    lower_bound: bool = False
    """True where the client left the engine before its last count, so that more may have been
    spent.
    """
    estimated: bool = False
    """True where the engine did not say, and the model's tokenizer counted what had come by
    then.
    """

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


TOKEN_COUNTS = tuple(
    field.name for field in msgspec.structs.fields(Usage) if field.type is not bool
)
"""The fields of `Usage` that are counts."""


class TokenIds(msgspec.Struct, frozen=True):
    """The very tokens of a call, by its engine."""

    prompt: tuple[int, ...]
    """Template included."""
    completion: tuple[int, ...]
    """As they were sampled, reasoning and what follows a stop string included."""
    logprobs: tuple[float, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of `completion`, natural logarithms, one each; set where they were asked for as well."""


class Completion(msgspec.Struct, frozen=True, gc=False):
    """A whole output."""

    text: str
    finish_reason: str
    """`stop`, `length`, …, as OpenAI's API names them."""
    reasoning: str = ""
    usage: Usage | None = None
    overran: bool = False
    """True where the engine wrote on past a stop string and the text was cut here."""
    tokens: TokenIds | msgspec.UnsetType = msgspec.UNSET
    """Set where they were asked for, which is not done in service."""
    unclosed: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    """Set where the endpoint stopped before any content or within a thought, perhaps at a stop
    string there.
    """

    @property
    def stopped_thinking(self) -> bool:
        """True where the endpoint seems to have met a stop string within its reasoning."""
        reasoned = self.reasoning or (self.usage and self.usage.reasoning_tokens)
        silent = bool(reasoned) and not self.text.strip()
        return self.finish_reason == "stop" and (silent or self.unclosed is True)


class Delta(msgspec.Struct, frozen=True, gc=False):
    """A piece of a streamed output. The last one has the usage, also where the stream is cut: what
    the engine counted by then.
    """

    text: str = ""
    reasoning: str = ""
    usage: Usage | None = None


OnDelta = Callable[[Delta], None]
"""Gets each piece as it arrives, in the context of the call but in no task; what it raises ends
the call.
"""


class Model(Protocol):
    """One model at one endpoint.

    Both methods raise `UpstreamUnavailable`, `UpstreamRefused` or `UpstreamProtocolError`, and stop
    the work upstream when cancelled. They make exactly one attempt: retries and the ledger are the
    caller's.
    """

    @property
    def name(self) -> str:
        """The model's name, as its endpoint knows it."""

    @property
    def endpoint(self) -> str:
        """The address at which it is served."""

    async def complete(self, prompt: Prompt) -> Completion:
        """The whole output at once."""

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        """The same, passed on as it is written. `live`: whether each piece is wanted at once;
        otherwise those after the first one may come a few at a time.
        """

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """The tokens of `prompt`, template included, and of `text` as its output, by the model's
        own tokenizer; None where that is not to be had. Raises nothing.
        """


def largest(earlier: Usage | None, later: Usage | None) -> Usage | None:
    """The larger of each count: a stream's usage only grows, whatever its engine says."""
    if earlier is None or later is None:
        return later or earlier
    counts = {name: _larger(getattr(earlier, name), getattr(later, name)) for name in TOKEN_COUNTS}
    return msgspec.structs.replace(later, **counts)


def _larger(one: int | None, other: int | None) -> int | None:
    return max((count for count in (one, other) if count is not None), default=None)


def end_at_stop(
    text: str, stop: tuple[str, ...], finish_reason: str, matched: str | None
) -> tuple[str, str]:
    """`text` as if the engine had honoured `stop` and kept the string that was met; and its finish
    reason.

    Engines differ: some ignore stop strings, some leave the matched one out, few say which it was
    (`matched`).
    """
    ends = [at + len(string) for string in stop if (at := text.find(string)) != -1]
    if ends:
        return text[: min(ends)], "stop"
    if finish_reason == "stop" and matched in stop:
        return text + (matched or ""), "stop"
    return text, finish_reason


Answer = Completion | UpstreamError | str


class ScriptedModel:
    """Gives its answers in order, or by a function of the prompt; an error among them is raised."""

    def __init__(
        self, answers: Iterable[Answer] | Callable[[Prompt], Answer], name: str = "scripted"
    ) -> None:
        self._answer = answers if callable(answers) else None
        self._queue = iter(()) if callable(answers) else iter(answers)
        self.name = name
        self.endpoint = f"scripted://{name}"
        self.prompts: list[Prompt] = []
        """Every prompt that was sent, in order."""

    async def complete(self, prompt: Prompt) -> Completion:
        """The next answer."""
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
        """Its tokens are words."""
        return Usage(
            sum(len(message.content.split()) for message in prompt.messages), len(text.split())
        )

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        """The next answer, word by word."""
        completion = await self.complete(prompt)
        if completion.reasoning:
            on_delta(Delta(reasoning=completion.reasoning))
        for word in re.findall(r"\s*\S+|\s+", completion.text):
            on_delta(Delta(word))
        on_delta(Delta(usage=completion.usage))
        return completion
