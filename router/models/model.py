"""Interface of a language model: the protocol `Model`, and the immutable values that it takes and
returns (`Prompt`, `Completion`, `Delta`, `Usage`).
"""

import json
import re
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from router.frozen import Frozen

_TOOLS_CHARS = 1500
"""Upper bound of the characters of a chat template's instructions for calling tools. Those of
Hermes and Llama have half as many.
"""


class Message(Frozen, gc=False):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Sampling(Frozen):
    """Sampling parameters of a call."""

    max_tokens: int = 1024
    """Max tokens of the output, including reasoning."""
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


class Function(Frozen):
    """A tool that a model may call."""

    name: str
    """Name of the tool: letters, digits, `_` and `-`."""
    description: str
    parameters: str
    """JSON schema of the tool's arguments, as JSON text."""


class Prompt(Frozen):
    """Input of one model call: the messages, and the options that shape the output."""

    messages: tuple[Message, ...]
    sampling: Sampling
    stop: tuple[str, ...] = ()
    """Stop strings: the output ends at the first of them. The output's text always includes the
    stop string at which it ended, even if the endpoint removes it.
    """
    request_id: str = ""
    """Identifier of the call, which the endpoint may write to its log; empty for none."""
    pattern: str | None = None
    """Regular expression that the output must match; reasoning is exempt. Endpoints without
    structured outputs ignore it.
    """
    tools: tuple[Function, ...] = ()
    """Tools that are offered through the endpoint's own tool calls. In messages and outputs, a call
    is always text: `<call tool="…">…</call>`.
    """
    unstopped: bool = False
    """True if the stop strings are not sent to the endpoint, because it would also stop at a stop
    string in the reasoning. The client then cuts the output at the stop string itself.
    """

    @property
    def texts(self) -> tuple[Message, ...]:
        """All texts that the model reads, for computing an upper bound of the prompt's tokens.
        Tools are added as a message whose JSON is at least as long as a chat template's text about
        them.
        """
        if not self.tools:
            return self.messages
        tools = [(tool.name, tool.description, json.loads(tool.parameters)) for tool in self.tools]
        return (*self.messages, Message("user", json.dumps(tools, indent=8) + " " * _TOOLS_CHARS))


class Usage(Frozen, gc=False):
    """Token counts of one call, as the engine reported them; None for a count that it left out.

    The counts are not checked here. `OpenedCall.allows` decides whether they are plausible.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens that came from the engine's cache; included in `prompt_tokens`."""
    reasoning_tokens: int | None = None
    """Tokens of the reasoning; included in `completion_tokens`."""
    lower_bound: bool = False
    """True if the client stopped reading before the engine's last count, so that the engine may
    have spent more tokens.
    """
    estimated: bool = False
    """True if the engine reported no usage. Then a tokenizer has counted the tokens of the prompt,
    and of the text that had arrived.
    """

    @property
    def total_tokens(self) -> int:
        """Sum of the prompt tokens and the completion tokens."""
        return self.prompt_tokens + self.completion_tokens


TOKEN_COUNTS = tuple(
    field.name for field in msgspec.structs.fields(Usage) if field.type is not bool
)
"""Names of the fields of `Usage` that hold token counts."""


class TokenIds(Frozen):
    """Token ids of a call, as its engine returned them."""

    prompt: tuple[int, ...]
    """Token ids of the prompt, after the chat template was applied."""
    completion: tuple[int, ...]
    """Token ids of the output as sampled, including reasoning and any text after a stop string."""
    logprobs: tuple[float, ...] | msgspec.UnsetType = msgspec.UNSET
    """Natural logarithm of the probability of each token in `completion`. Unset if the request did
    not ask for it.
    """


class Completion(Frozen, gc=False):
    """The complete output of one model call."""

    text: str
    finish_reason: str
    """Why the output ended: `stop`, `length` or another value of OpenAI's API."""
    reasoning: str = ""
    usage: Usage | None = None
    overran: bool = False
    """True if the engine continued to write after a stop string. `text` ends at that stop string
    nevertheless.
    """
    tokens: TokenIds | msgspec.UnsetType = msgspec.UNSET
    """Token ids of the call. Unset unless the request asked for them, which only training does."""
    unclosed: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    """Set if the endpoint ended the output before it wrote any content, or within unfinished
    reasoning.
    """

    @property
    def stopped_thinking(self) -> bool:
        """True if the output probably ended at a stop string that the model wrote while it was
        still reasoning, so that the answer itself is missing.
        """
        reasoned = self.reasoning or (self.usage and self.usage.reasoning_tokens)
        silent = bool(reasoned) and not self.text.strip()
        return self.finish_reason == "stop" and (silent or self.unclosed is True)


class Delta(Frozen, gc=False):
    """Piece of a streamed output. The last piece contains the usage, even if the stream was
    interrupted.
    """

    text: str = ""
    reasoning: str = ""
    usage: Usage | None = None


OnDelta = Callable[[Delta], None]
"""Callback that receives each piece of a stream as it arrives. It runs in the `contextvars` context
of the call, but not inside the call's task. An error that it raises ends the call.
"""


class Model(Protocol):
    """One model at one endpoint.

    `complete` and `stream` raise `UpstreamUnavailable`, `UpstreamRefused` or
    `UpstreamProtocolError`. When the calling task is cancelled, they stop the work at the endpoint.
    Each makes exactly one attempt: the caller handles retries and records the call in the ledger.
    """

    @property
    def name(self) -> str:
        """The model's name at its endpoint."""

    @property
    def endpoint(self) -> str:
        """The endpoint's address."""

    async def complete(self, prompt: Prompt) -> Completion:
        """Return the model's output for `prompt`, without streaming."""

    async def stream(
        self,
        prompt: Prompt,
        on_delta: OnDelta,
        *,
        live: bool = True,
    ) -> Completion:
        """Call `on_delta` with each piece of the output as it arrives, and return the whole output.

        `live`: False to save CPU time by grouping pieces after the first.
        """

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """Count the tokens of `prompt` (after the chat template) and of the output `text` with the
        model's tokenizer. Return None if the tokenizer is unavailable. Never raises.
        """


_LONE = re.compile("[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]")
"""Matches a surrogate that is not half of a pair."""


def encodable(text: str) -> str:
    """Return `text` in a form that every Unicode encoding can represent: surrogate pairs become one
    character, and each unpaired surrogate becomes U+FFFD.
    """
    if text.isascii():
        return text
    return _LONE.sub("\ufffd", text).encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def largest(earlier: Usage | None, later: Usage | None) -> Usage | None:
    """Merge two usages of the same stream: return the larger value of each count, because the
    counts of a stream only grow.
    """
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
    """Return `text` up to the end of its first stop string, and the finish reason.

    Engines treat stop strings differently: some ignore them, some remove the stop string from the
    end of the text, and few report which stop string it was. `matched`: the stop string at which
    the output ended, as the engine reports it, or None. It is appended if `text` lacks it.
    """
    ends = [text.find(string) + len(string) for string in stop if string in text]
    if ends:
        return text[: min(ends)], "stop"
    if finish_reason == "stop" and matched in stop:
        return f"{text}{matched}", "stop"
    return text, finish_reason
