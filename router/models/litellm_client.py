"""A model of a hosted provider through LiteLLM, which the first call imports."""

import asyncio
import importlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import aiohttp
import msgspec

from router.errors import BadConfig
from router.models.failures import Upstream, without_userinfo
from router.models.model import Completion, OnDelta, Prompt, Usage
from router.models.openai_wire import REQUEST_ID, ChatReply, UsageReply, chat_body, readable
from router.models.streaming import StreamedReply


class LiteLLMModel:
    """One model of one provider, such as `deepseek/deepseek-chat`.

    Parameters that a provider does not know are dropped: stop strings are enforced here anyway, and
    seed and temperature are optional. A stream does not tell which stop string the provider met and
    left out, so its text lacks that string. Usage that LiteLLM estimates is dropped.
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
        """`model`: with LiteLLM's prefix for the provider. `api_base`: an address other than the
        provider's default.

        `extra_body`: further keyword arguments of every call, which win over all but model,
        messages, stream and the retries, of which there are none. `omit`: as for `OpenAIHTTP`.
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
            raise self._upstream.protocol_error("a reply without choices")
        # LiteLLM fills in zeros if the provider does not count; a real prompt has a token.
        if reply.usage and not reply.usage.prompt_tokens:
            reply = msgspec.structs.replace(reply, usage=None)
        streamed = StreamedReply(prompt)
        streamed.take_complete(reply)
        return self._completion(streamed)

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
                    reply.take(msgspec.structs.replace(chunk, usage=_counted(chunks, chunk.usage)))
                    reply.report()
                if not reply.complete:
                    raise self._upstream.unavailable("the stream was cut before its end")
                return self._completion(reply)
        finally:
            await chunks.aclose()

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """Return LiteLLM's estimate for OpenAI's models; it lacks the tokenizers of others."""
        self._litellm = await asyncio.to_thread(load_litellm)
        return await asyncio.to_thread(
            _count,
            self._litellm,
            self.name.removeprefix("openai/"),
            prompt,
            text,
        )

    def _completion(self, streamed: StreamedReply) -> Completion:
        output = streamed.end()
        if (words := streamed.refused) is not None:
            raise self._upstream.declined(words)
        return output

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
        before = sys.exception()  # a fallback runs while the primary's error is being handled
        try:
            yield
        except Exception as error:
            # LiteLLM's errors have no common base class, but those of a provider have a status.
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
    """Return LiteLLM, configured. The first import takes seconds, so call it in a thread; it is
    thread-safe.
    """
    # Otherwise the import calls the network, and reads a .env file of the working directory
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    try:
        litellm: Any = importlib.import_module("litellm")
    except ModuleNotFoundError as error:
        raise BadConfig(
            "hosted models need the package litellm; install the extra rolegate[hosted]"
        ) from error
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm


def _cause(error: BaseException, before: BaseException | None) -> aiohttp.ClientError | int | None:
    """Return the server's status or the connection's failure behind LiteLLM's `error`, whose status
    LiteLLM may have made up; None if there is neither. `before`: the error that was being handled
    when the call began.
    """
    seen: list[BaseException] = []
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
    """Estimate the tokens; None for a model that is not OpenAI's or unknown to tiktoken."""
    try:
        importlib.import_module("tiktoken").encoding_name_for_model(name)
    except KeyError:
        return None
    if name not in litellm.open_ai_chat_completion_models:
        return None
    read = litellm.token_counter(name, messages=msgspec.to_builtins(prompt.messages))
    return Usage(read, litellm.token_counter(name, text=text), estimated=True)


def _is_made_up(chunks: Any, chunk: ChatReply) -> bool:
    """Return whether LiteLLM invented the finish reason, as it does for a stream that was cut."""
    finished = chunk.choice is not None and chunk.choice.finish_reason is not None
    return finished and not (chunks.received_finish_reason or chunks.intermittent_finish_reason)


def _counted(chunks: Any, usage: UsageReply | None) -> UsageReply | None:
    """Return the usage without the parts that LiteLLM estimated instead of the provider."""
    reported = [chunk.usage for chunk in chunks.chunks if getattr(chunk, "usage", None)]
    if usage is None or not reported:
        return None
    for part in reported:
        details = part.completion_tokens_details
        if details and details.reasoning_tokens is not None:
            return usage
    return msgspec.structs.replace(usage, completion_tokens_details=None)
