"""OpenAI's chat completions, as far as this gateway reads and writes them."""

import secrets
import time
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from router.edge.rendering import CitedAnswer, cited_answer
from router.errors import BadRequest
from router.models.openai_wire import CompletionDetails, PromptDetails
from router.trace.call import RoleTotal, sum_known, totals
from router.trace.run import Run


class Part(msgspec.Struct, frozen=True):
    """A part of a message; only those of type `text` have one."""

    type: str
    text: str = ""


class ChatMessage(msgspec.Struct, frozen=True):
    """A turn."""

    role: str
    content: str | tuple[Part, ...] | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream ends with."""

    include_usage: bool | None = None


class ChatRequest(msgspec.Struct, frozen=True):
    """What is read of a request; further fields are ignored."""

    model: str
    messages: tuple[ChatMessage, ...]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tool_choice: Any = None
    fresh: bool | None = None
    """Not OpenAI's: whether all is to be worked on anew, as the field of that name over gRPC."""

    @property
    def question(self) -> str:
        """The text of the last user message; nothing else is used. Raises `BadRequest` for what cannot be done."""
        if self.n not in (None, 1):
            raise BadRequest(f"n is {self.n}; there is one answer to a question.")
        if self.tool_choice not in (None, "auto", "none"):
            raise BadRequest("tool_choice demands a tool, but this model calls none; leave it out.")
        asked = [number for number, message in enumerate(self.messages) if message.role == "user"]
        if not asked:
            raise BadRequest("messages has no message of role `user`; the last one is the question.")
        content = self.messages[asked[-1]].content or ""
        if isinstance(content, str):
            return content
        for number, part in enumerate(content):
            if part.type != "text":
                raise BadRequest(f"messages[{asked[-1]}].content[{number}] is of type {part.type!r}; send text alone.")
        return "\n".join(part.text for part in content)


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message, or a chunk's piece of one."""

    role: str | None = None
    reasoning_content: str | None = None
    content: str | None = None


class ReplyChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The one output: a message or, in a chunk, a delta."""

    index: int
    finish_reason: str | None
    message: Said | None = None
    delta: Said | None = None


class TokenUsage(msgspec.Struct, frozen=True):
    """Tokens of all roles; a detail that no engine told is None."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A whole completion or one chunk."""

    id: str
    object: str
    created: int
    """Unix time, seconds."""
    model: str
    choices: tuple[ReplyChoice, ...]
    usage: TokenUsage | None = None
    rolegate: dict[str, Any] | None = None
    """The fields of `CitedAnswer`, and `usage` by role."""


def opened(model: str) -> Reply:
    """What all the chunks of one stream have in common."""
    return Reply(f"chatcmpl-{secrets.token_hex(12)}", "chat.completion.chunk", int(time.time()), model, ())


async def whole(model: str, run: Run) -> Reply:
    """The reply to a request that does not stream."""
    cited, spent = await cited_answer(run), totals(run.calls)
    choice = ReplyChoice(0, "stop", message=Said("assistant", content=cited.text))
    details = _details(cited, spent)
    return replace(opened(model), object="chat.completion", choices=(choice,), usage=_usage(spent), rolegate=details)


def chunk(of: Reply, said: Said) -> Reply:
    """A piece of the stream `of`."""
    return replace(of, choices=(ReplyChoice(0, None, delta=said),))


async def last_chunks(of: Reply, run: Run, *, with_usage: bool) -> list[Reply]:
    """The last pieces of the stream `of`: the answer, the end with its details and, if wanted, the tokens."""
    cited, spent = await cited_answer(run), totals(run.calls)
    end = replace(of, choices=(ReplyChoice(0, "stop", delta=Said()),), rolegate=_details(cited, spent))
    tokens = [replace(of, usage=_usage(spent))] if with_usage else []
    return [chunk(of, Said(content=cited.text)), end, *tokens]


def _details(cited: CitedAnswer, spent: list[RoleTotal]) -> dict[str, Any]:
    return {**asdict(cited), "usage": spent}


def _usage(spent: list[RoleTotal]) -> TokenUsage | None:
    """The sum over roles; None where no engine told anything."""
    if spent and all(role.attempts == role.attempts_without_usage for role in spent):
        return None
    prompt, completion = sum(role.prompt_tokens for role in spent), sum(role.completion_tokens for role in spent)
    cached = PromptDetails(sum_known([role.cached_tokens for role in spent]))
    reasoning = CompletionDetails(sum_known([role.reasoning_tokens for role in spent]))
    return TokenUsage(prompt, completion, prompt + completion, cached, reasoning)
