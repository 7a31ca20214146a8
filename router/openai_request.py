"""The request of OpenAI's chat completions API, as far as it is used here."""

from collections.abc import Mapping
from typing import Any

import msgspec

from router.model import Message, Prompt

REQUEST_ID = "X-Request-Id"
"""The header that names a call; vLLM then logs it as `chatcmpl-` and that name."""
_OURS = frozenset({"model", "messages", "stream"})


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream tells beside its text."""

    include_usage: bool
    continuous_usage_stats: bool | msgspec.UnsetType = msgspec.UNSET
    """vLLM's: the count so far with every chunk."""

    @property
    def fewer(self) -> "StreamOptions | None":
        """What to ask an endpoint for that refuses this; None for nothing."""
        return None if self.continuous_usage_stats is msgspec.UNSET else StreamOptions(True)


class TemplateKwargs(msgspec.Struct, frozen=True):
    """vLLM's: what the chat template is rendered with."""

    enable_thinking: bool


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's: what the output has to match."""

    regex: str


class ChatRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of `POST /chat/completions`; what is not set is not sent."""

    model: str
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int | None = None
    stop: tuple[str, ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """vLLM's: the last message is the assistant's, and is gone on with."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    structured_outputs: StructuredOutputs | None = None


def chat_body(
    model: str,
    prompt: Prompt,
    *,
    stream: bool = False,
    options: StreamOptions | None = None,
    thinking: bool | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The request for `prompt`, ready for JSON. `options`: what a stream tells beside its text. `thinking`: the
    template's `enable_thinking`; None leaves it alone. A last message of the assistant's is continued.

    `extra`: further fields. They win over those here, but for model, messages and stream; tables are merged.
    """
    sampling = prompt.sampling
    continues = bool(prompt.messages) and prompt.messages[-1].role == "assistant"
    request = ChatRequest(
        model=model,
        messages=prompt.messages,
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop=prompt.stop,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        stream=stream,
        stream_options=options,
        chat_template_kwargs=None if thinking is None else TemplateKwargs(thinking),
        structured_outputs=None if prompt.pattern is None else StructuredOutputs(prompt.pattern),
    )
    body: dict[str, Any] = msgspec.to_builtins(request)
    for name, value in (extra or {}).items():
        if name not in _OURS:
            both = isinstance(value, Mapping) and isinstance(body.get(name), Mapping)
            body[name] = {**body[name], **value} if both else value
    return body
