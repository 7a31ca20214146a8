"""A model of a hosted provider, called through LiteLLM. LiteLLM is imported at the first call."""

import asyncio
import importlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import aiohttp
import msgspec
from msgspec.structs import replace

from router.errors import BadConfig
from router.models.failures import Upstream, without_userinfo
from router.models.model import Completion, OnDelta, Prompt, Usage
from router.models.openai_wire import REQUEST_ID, ChatReply, UsageReply, chat_body, readable
from router.models.streaming import StreamedReply, completed


class LiteLLMModel:
    """One model of one provider, such as `deepseek/deepseek-chat`.

    Parameters that a provider does not accept are left out of its requests. This is harmless: stop
    strings are also enforced here, and seed and temperature are optional. If an output ends at a
    stop string, the provider removes the string from the text. A stream does not report which
    string it was, so the text of a stream lacks it. Usage that LiteLLM only estimates is discarded.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        api_base: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        omit: Collection[str] = (),
    ) -> None:
        """`model`: the model's name with LiteLLM's prefix for the provider. `api_base`: the
        endpoint's address; None for the provider's default.

        `extra_body`: further keyword arguments of every call. They override all arguments except
        model, messages, stream, and the number of retries, which is always 0. `omit`: names of
        parameters to leave out of every call.
        """
        self._omit = omit
        self.name = model
        self.endpoint = without_userinfo(api_base or "") or f"litellm:{model.partition('/')[0]}"
        self._upstream = Upstream(
            model, api_base or self.endpoint, api_key and api_key.strip(), extra_body
        )
        self._settings = {
            "api_key": api_key and api_key.strip(),
            "api_base": api_base,
            "drop_params": True,
            **(extra_body or {}),
            "num_retries": 0,
            "max_retries": 0,
        }
        self._litellm: Any = None

    async def complete(self, prompt: Prompt) -> Completion:
        """See `Model`."""
        reply = self._read(await self._call(prompt))
        if reply.choice is None:
            raise self._upstream.protocol_error(
                "the reply contains no output (`choices`); check the model's name"
            )
        # LiteLLM fills in zeros if the provider reports no usage; a real prompt has at least one
        # token.
        if reply.usage and not reply.usage.prompt_tokens:
            reply = replace(reply, usage=None)
        streamed = StreamedReply(prompt)
        streamed.take_complete(reply)
        return completed(streamed, self._upstream)

    async def stream(
        self,
        prompt: Prompt,
        on_delta: OnDelta,
        *,
        live: bool = True,
    ) -> Completion:
        """See `Model`."""
        chunks = await self._call(prompt, stream=True, options={"include_usage": True})
        try:
            with StreamedReply(prompt, on_delta) as reply:
                while not reply.abandoned:
                    with self._translated():
                        raw = await anext(chunks, None)
                    if raw is None or _is_made_up(chunks, chunk := self._read(raw)):
                        break
                    reply.take(replace(chunk, usage=_counted(chunks, chunk.usage)))
                    reply.report()
                return completed(reply, self._upstream)
        finally:
            await chunks.aclose()

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """Return LiteLLM's estimate of the tokens for a model of OpenAI; None for any other model,
        because LiteLLM does not have its tokenizer.
        """
        self._litellm = await asyncio.to_thread(load_litellm)
        return await asyncio.to_thread(
            _count,
            self._litellm,
            self.name.removeprefix("openai/"),
            prompt,
            text,
        )

    async def _call(
        self,
        prompt: Prompt,
        *,
        stream: bool = False,
        options: Mapping[str, bool] | None = None,
    ) -> Any:
        """Return LiteLLM's reply, or its iterator of chunks."""
        if self._litellm is None:
            self._litellm = await asyncio.to_thread(load_litellm)
        body = chat_body(
            self.name,
            prompt,
            stream=stream,
            options=options,
            extra=self._settings,
            omit=self._omit,
        )
        body["messages"] = msgspec.to_builtins(body["messages"])
        if prompt.request_id:
            body["extra_headers"] = {REQUEST_ID: prompt.request_id, **body.get("extra_headers", {})}
        with self._translated():
            return await self._litellm.acompletion(**body)

    def _read(self, raw: Any) -> ChatReply:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(raw, ChatReply, from_attributes=True)
        return readable(ChatReply, raw.model_dump()) or ChatReply()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        # A fallback model is called while the error of the first model is being handled. That error
        # is not a cause of the fallback's error.
        before = sys.exception()
        try:
            yield
        except Exception as error:
            # LiteLLM's errors have no common base class, but those that a provider caused have a
            # status.
            cause = _cause(error, before)
            if isinstance(cause, aiohttp.ClientError):
                raise self._upstream.from_transport(cause) from error
            status = cause or getattr(error, "status_code", None)
            if not isinstance(status, int):
                raise self._upstream.protocol_error(f"{type(error).__name__}: {error}") from error
            headers = getattr(error, "litellm_response_headers", None)
            raise self._upstream.from_status(status, str(error), headers) from error


async def close_clients() -> None:
    """Close the connections that LiteLLM keeps for all models, if it was used."""
    if litellm := sys.modules.get("litellm"):
        await litellm.close_litellm_async_clients()


def load_litellm() -> Any:
    """Import LiteLLM, configure it, and return the module. The first import takes seconds, so call
    this function in a thread. It is thread-safe.

    Raises `BadConfig` if LiteLLM is not installed.
    """
    # Without these settings, the import makes network requests and reads the .env file of the
    # working directory.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    try:
        litellm: Any = importlib.import_module("litellm")
    except ModuleNotFoundError as error:
        raise BadConfig(
            "models of hosted providers need the package litellm; install rolegate[hosted]"
        ) from error
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm


def _cause(error: BaseException, before: BaseException | None) -> aiohttp.ClientError | int | None:
    """Follow the chain of causes of LiteLLM's `error` to the original one: return the HTTP status
    that the server sent, or the failure of the connection. Return None if the chain has neither.

    The status of `error` itself is not reliable, because LiteLLM may have made it up. `before`: the
    exception that was being handled when the call began. That exception is in the chain too, but is
    not a cause, so the search ends there.
    """
    seen = list[BaseException]()
    link: BaseException | None = error
    while link is not None and link is not before and link not in seen:
        status = getattr(getattr(link, "response", None), "status_code", None)
        # LiteLLM's own errors have made-up responses
        if isinstance(status, int) and not type(link).__module__.startswith("litellm"):
            return status
        answered = isinstance(link, aiohttp.ClientResponseError)
        if isinstance(link, aiohttp.ClientError) and not answered:
            return link
        seen.append(link)
        link = link.__cause__ or link.__context__
    return None


def _count(
    litellm: Any,
    name: str,
    prompt: Prompt,
    text: str,
) -> Usage | None:
    """Estimate the tokens of `prompt` and of the output `text`. Return None if `name` is not a
    model of OpenAI, or if tiktoken does not know it.
    """
    try:
        importlib.import_module("tiktoken").encoding_name_for_model(name)
    except KeyError:
        return None
    if name not in litellm.open_ai_chat_completion_models:
        return None
    read = litellm.token_counter(name, messages=msgspec.to_builtins(prompt.messages))
    return Usage(read, litellm.token_counter(name, text=text), estimated=True)


def _is_made_up(chunks: Any, chunk: ChatReply) -> bool:
    """Return whether LiteLLM invented the chunk's finish reason, as it does for a stream that was
    cut off.
    """
    finished = chunk.choice is not None and chunk.choice.finish_reason is not None
    return finished and not (chunks.received_finish_reason or chunks.intermittent_finish_reason)


def _counted(chunks: Any, usage: UsageReply | None) -> UsageReply | None:
    """Return `usage` without the counts that LiteLLM estimated itself. Return None if the provider
    reported no usage.
    """
    reported = [chunk.usage for chunk in chunks.chunks if getattr(chunk, "usage", None)]
    if usage is None or not reported:
        return None
    for part in reported:
        details = part.completion_tokens_details
        if details and details.reasoning_tokens is not None:
            return usage
    return replace(usage, completion_tokens_details=None)
