"""The replies of OpenAI's chat completions API, whole or in chunks, as vLLM and others really write them."""

import msgspec

from router.model import Completion, Usage, end_at_stop

_CUT = frozenset({"length", "max_tokens", "model_length", "insufficient_system_resource"})
"""Names for an output that was ended before its end: OpenAI's, and what others write."""


class PromptDetails(msgspec.Struct, frozen=True):
    """A part of the prompt tokens."""

    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct, frozen=True):
    """A part of the completion tokens."""

    reasoning_tokens: int | None = None


class UsageReply(msgspec.Struct, frozen=True):
    """What the engine counted."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's name for the cached tokens."""

    def usage(self) -> Usage | None:
        """The same as our value, possible or not; None where a total is missing, because unknown is not zero."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        cached = (self.prompt_tokens_details or PromptDetails()).cached_tokens
        reasoning = (self.completion_tokens_details or CompletionDetails()).reasoning_tokens
        if cached is None:
            cached = self.prompt_cache_hit_tokens
        written = self.completion_tokens
        if reasoning and self.total_tokens == self.prompt_tokens + written + reasoning:
            written += reasoning  # xAI counts it beside
        return Usage(self.prompt_tokens, written, cached, reasoning)


class Part(msgspec.Struct, frozen=True):
    """A part of a content that is a list, as Mistral writes it: text, or thinking, which has parts of its own."""

    text: str | None = None
    thinking: "str | tuple[Part, ...] | None" = None


class MessageReply(msgspec.Struct, frozen=True):
    """A message, or a chunk's piece of one."""

    content: str | tuple[Part, ...] | None = None
    reasoning: str | None = None
    """vLLM's name."""
    reasoning_content: str | None = None
    """The name of DeepSeek's API and of LiteLLM."""

    @property
    def text(self) -> str:
        """What was written, without the reasoning."""
        return _text(self.content)

    @property
    def thought(self) -> str:
        """The reasoning under either name, or in parts of its own."""
        if self.reasoning or self.reasoning_content or not isinstance(self.content, tuple):
            return self.reasoning or self.reasoning_content or ""
        return "".join(_text(part.thinking) for part in self.content)


def _text(content: str | tuple[Part, ...] | None) -> str:
    if isinstance(content, tuple):
        return "".join(part.text or "" for part in content)
    return content or ""


class ProviderFields(msgspec.Struct, frozen=True):
    """Where LiteLLM keeps a choice's fields that it has no name for."""

    stop_reason: str | int | None = None


class Choice(msgspec.Struct, frozen=True):
    """One output, or a chunk's piece of it."""

    index: int = 0
    message: MessageReply | None = None
    delta: MessageReply | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """vLLM's: the stop string that was met, or the id of the stop token."""
    provider_specific_fields: ProviderFields | None = None

    @property
    def said(self) -> MessageReply:
        """The message or the piece of one."""
        return self.message or self.delta or MessageReply()

    @property
    def ended(self) -> str | None:
        """The finish reason, in OpenAI's words where an output was cut."""
        return "length" if self.finish_reason in _CUT else self.finish_reason

    @property
    def matched(self) -> str | None:
        """The stop string that was met, where the engine names it."""
        reason = self.stop_reason or (self.provider_specific_fields and self.provider_specific_fields.stop_reason)
        return reason if isinstance(reason, str) else None


class ErrorReply(msgspec.Struct, frozen=True):
    """What an engine says about its failure."""

    message: str = ""
    type: str | None = None
    code: str | int | None = None

    @property
    def said(self) -> str:
        """Its words, and its name for the failure where it has one."""
        name = self.code if isinstance(self.code, str) and not self.code.isdecimal() else self.type
        return f"{self.message} ({name})".lstrip() if name else self.message


class ChatReply(msgspec.Struct, frozen=True):
    """A whole reply or one chunk of a stream; or an error, which some servers send with status 200."""

    choices: tuple[Choice, ...] | None = None
    usage: UsageReply | None = None
    error: ErrorReply | str | None = None

    @property
    def choice(self) -> Choice | None:
        """The first output; no more than one is ever asked for."""
        for choice in self.choices or ():
            if choice.index == 0:
                return choice
        return None


class _Uncounted(msgspec.Struct, frozen=True):
    """A `ChatReply`, whatever is said of usage."""

    choices: tuple[Choice, ...] | None = None
    error: ErrorReply | str | None = None


_NO_COUNT = UsageReply(-1, -1)
"""Stands for what is no count at all: like any that cannot be, it is not believed."""
_reply, _uncounted = msgspec.json.Decoder(ChatReply), msgspec.json.Decoder(_Uncounted)


def read_reply(body: bytes) -> ChatReply:
    """The reply, or chunk, that `body` holds. Raises `msgspec.DecodeError` and `UnicodeDecodeError`."""
    try:
        return _reply.decode(body)
    except msgspec.ValidationError:
        reply = _uncounted.decode(body)
        return ChatReply(reply.choices, _NO_COUNT, reply.error)


def convert_reply(raw: object) -> ChatReply:
    """The same of an object with such attributes. Raises `msgspec.ValidationError`."""
    try:
        return msgspec.convert(raw, ChatReply, from_attributes=True)
    except msgspec.ValidationError:
        reply = msgspec.convert(raw, _Uncounted, from_attributes=True)
        return ChatReply(reply.choices, _NO_COUNT, reply.error)


class FailureReply(msgspec.Struct, frozen=True):
    """The body of a reply with an error status: OpenAI's shape, that of older vLLMs, or FastAPI's."""

    error: ErrorReply | str | None = None
    message: str | None = None
    detail: str | None = None

    @property
    def said(self) -> str:
        """What went wrong, in the server's words."""
        error = self.error.said if isinstance(self.error, ErrorReply) else self.error
        return error or self.message or self.detail or ""


def completion(choice: Choice, usage: UsageReply | None, stop: tuple[str, ...], *, thinks: bool = True) -> Completion:
    """The whole output, ended at `stop`. A whole reply that gives no finish reason counts as stopped.

    `thinks`: False for a model whose thinking is switched off; what its engine took for reasoning is then the output.
    """
    thought = choice.said.thought
    written = choice.said.text or ("" if thinks else thought)
    text, finish_reason = end_at_stop(written, stop, choice.ended or "stop", choice.matched)
    counted = usage.usage() if usage else None
    return Completion(text, finish_reason, thought, counted, overran=len(text) < len(written))
