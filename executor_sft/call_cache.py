"""Cache of completed model calls in a file, by request, so that no call is paid for twice."""

import asyncio
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from executor_sft.jsonl import JsonlFile
from router.models import Completion, Delta, Model, OnDelta, Prompt, Usage
from router.trace import Call, RoleName


class _Entry(msgspec.Struct, frozen=True):
    """A line of the file."""

    key: str
    role: RoleName
    model: str
    completion: Completion


class PaidCalls(msgspec.Struct):
    """Number and tokens of the paid calls of a role's model."""

    role: RoleName
    model: str
    calls: int = 0
    calls_without_usage: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class CallCache:
    """Completed calls by their request. Failed calls are not kept."""

    def __init__(self, file: JsonlFile[_Entry]) -> None:
        """Read the file. Raises `BadConfig` for an invalid line."""
        self._file = file
        self._entries = {entry.key: entry for entry in file}
        self._hits: set[str] = set()
        self._keys: dict[str, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["CallCache"]:
        """Open the cache of a file, which is created if missing. Raises `BadConfig`."""
        with closing(JsonlFile(path, _Entry, "remove this line, or name a new folder")) as file:
            yield cls(file)

    async def complete(
        self,
        model: Model,
        role: RoleName,
        prompt: Prompt,
        key: str,
    ) -> Completion:
        """Return the completion kept under `key`, or else the model's. Concurrent requests with
        one key make one call. Raises the model's errors and `StoreFailed`.
        """
        async with self._locks.setdefault(key, asyncio.Lock()):
            if (entry := self._entries.get(key)) is None:
                entry = _Entry(key, role, model.name, await model.complete(prompt))
                self._file.append(entry)
                self._entries[key] = entry
            else:
                self._hits.add(prompt.request_id)
        self._keys[prompt.request_id] = key
        return entry.completion

    def hits(self, calls: Iterable[Call]) -> int:
        """Return the number of a ledger's calls that were answered from the cache."""
        return sum(call.request_id in self._hits for call in calls)

    def key(self, call: Call) -> str | None:
        """Return the key of a ledger's call; calls with one key are paid for once. None if the
        call was not made through this cache, or failed.
        """
        return self._keys.get(call.request_id)

    @property
    def spent(self) -> list[PaidCalls]:
        """Paid calls by role and model."""
        groups: dict[tuple[RoleName, str], PaidCalls] = {}
        for entry in self._entries.values():
            group = groups.setdefault((entry.role, entry.model), PaidCalls(entry.role, entry.model))
            usage = entry.completion.usage or Usage(0, 0)
            group.calls += 1
            group.calls_without_usage += entry.completion.usage is None
            group.prompt_tokens += usage.prompt_tokens
            group.completion_tokens += usage.completion_tokens
        return [groups[key] for key in sorted(groups)]


class CachedModel:
    """A model whose completed calls are cached. `variant`: request options that are sent with the
    prompt, as JSON.
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
        """Return the cached completion. Raises the model's errors and `StoreFailed`."""
        fields = msgspec.structs.asdict(msgspec.structs.replace(prompt, request_id=""))
        if not prompt.unstopped:
            del fields["unstopped"]  # so that the keys and seeds of older caches stay valid
        request = msgspec.json.encode(fields)
        key = hashlib.sha256(self._variant + b"\n" + request).hexdigest()
        # Derive a seed from each request: one seed would give all calls the same noise
        if prompt.sampling.seed is not None:
            sampling = msgspec.structs.replace(prompt.sampling, seed=int(key[:7], 16))
            prompt = msgspec.structs.replace(prompt, sampling=sampling)
        return await self._cache.complete(self._model, self._role, prompt, key)

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        """Return the completion, and report it in one piece."""
        completion = await self.complete(prompt)
        on_delta(Delta(completion.text, completion.reasoning, completion.usage))
        return completion

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """Return the model's own count."""
        return await self._model.count(prompt, text)
