"""Cache of completed model calls in a file. A request that was answered before is not sent to the
model again, even after an interruption, so that no call is paid for twice.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from executor_sft.jsonl import JsonlFile
from router.frozen import Frozen
from router.models import Completion, Delta, Model, OnDelta, Prompt, Usage
from router.trace import Call, RoleName


class KeptCall(Frozen):
    """A line of the cache's file: one completed call."""

    key: str
    """SHA-256 of everything that determines the reply: the prompt, the model's name and its
    options.
    """
    role: RoleName
    model: str
    completion: Completion


class PaidCalls(msgspec.Struct):
    """Number of paid calls and of their tokens, for one role and one model. Calls answered from the
    cache cost nothing and are not counted.
    """

    role: RoleName
    model: str
    calls: int = 0
    calls_without_usage: int = 0
    """Number of calls for which the endpoint returned no token counts; their tokens are missing in
    the sums.
    """
    prompt_tokens: int = 0
    completion_tokens: int = 0


class CallCache:
    """Completed model calls, by key. The key is a hash of everything that determines the reply.
    Failed calls are not kept.
    """

    def __init__(self, file: JsonlFile[KeptCall] | list[KeptCall]) -> None:
        """Load the completed calls from `file`. New calls are appended to the file. Raises
        `BadConfig` for an invalid line.
        """
        self._file = file
        self._entries = {entry.key: entry for entry in file}
        self._hits = set[str]()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["CallCache"]:
        """Open the cache in the file `path`. The file is created if it is missing.

        Raises `BadConfig` for an invalid line, and if another process has the file open.
        """
        with closing(JsonlFile(path, KeptCall, "remove this line, or name a new folder")) as file:
            yield cls(file)

    async def complete(
        self,
        model: Model,
        role: RoleName,
        prompt: Prompt,
        key: str,
    ) -> Completion:
        """Return the cached completion for `key`. If there is none, call the model and cache its
        completion.

        Concurrent requests with the same key share one call. Raises the model's errors, and
        `StoreFailed` if the file cannot be written.
        """
        async with self._locks.setdefault(key, asyncio.Lock()):
            if (entry := self._entries.get(key)) is None:
                entry = KeptCall(key, role, model.name, await model.complete(prompt))
                self.keep(entry)
            else:
                self._hits.add(prompt.request_id)
        return entry.completion

    def keep(self, entry: KeptCall) -> None:
        """Add a completed call to the cache, unless the cache has a call with the same key. Raises
        `StoreFailed` if the file cannot be written.
        """
        if entry.key not in self._entries:
            self._file.append(entry)
            self._entries[entry.key] = entry

    def hits(self, calls: Iterable[Call]) -> int:
        """Return how many of `calls` were answered from the cache."""
        return sum(call.request_id in self._hits for call in calls)

    @property
    def spent(self) -> list[PaidCalls]:
        """Number of calls in the cache and of their tokens: one entry for each role and model."""
        groups = dict[tuple[RoleName, str], PaidCalls]()
        for entry in self._entries.values():
            group = groups.setdefault((entry.role, entry.model), PaidCalls(entry.role, entry.model))
            usage = entry.completion.usage or Usage(0, 0)
            group.calls += 1
            group.calls_without_usage += entry.completion.usage is None
            group.prompt_tokens += usage.prompt_tokens
            group.completion_tokens += usage.completion_tokens
        return [groups[key] for key in sorted(groups)]


class CachedModel:
    """Model with a `CallCache`: a prompt that was completed before is answered from the cache.

    `variant`: everything that determines the reply in addition to prompt and model, such as request
    options. It becomes part of the cache key, and must be encodable as JSON.
    """

    def __init__(
        self,
        model: Model,
        cache: CallCache,
        role: RoleName,
        variant: object = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._role = role
        self.name = model.name
        self.endpoint = model.endpoint
        self._variant = msgspec.json.encode((model.name, variant), order="deterministic")

    async def complete(self, prompt: Prompt) -> Completion:
        """Return the completion of `prompt` from the cache, or else from the model.

        Raises the model's errors, and `StoreFailed` if the cache cannot be written.
        """
        fields = msgspec.structs.asdict(replace(prompt, request_id=""))
        if not prompt.unstopped:
            # Keys in older caches were made without this field; leave it out to keep them valid
            del fields["unstopped"]
        request = msgspec.json.encode(fields)
        key = hashlib.sha256(self._variant + b"\n" + request).hexdigest()
        # Derive the seed from the request: if all calls had one seed, their samples would be
        # correlated
        if prompt.sampling.seed is not None:
            sampling = replace(prompt.sampling, seed=int(key[:7], 16))
            prompt = replace(prompt, sampling=sampling)
        return await self._cache.complete(self._model, self._role, prompt, key)

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        """Return the completion of `prompt`, as `complete` does, and pass it to `on_delta` as a
        single delta. `live` has no effect.
        """
        completion = await self.complete(prompt)
        on_delta(Delta(completion.text, completion.reasoning, completion.usage))
        return completion

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """Count the tokens of `prompt` and of the output `text` with the model's tokenizer. Return
        None if the tokenizer is unavailable.
        """
        return await self._model.count(prompt, text)
