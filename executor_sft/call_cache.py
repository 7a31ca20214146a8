"""Completed model calls, kept in a file by their request, so that nothing is paid for twice."""

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


class Spent(msgspec.Struct):
    """Paid calls of a role's model, with their tokens."""

    role: RoleName
    model: str
    calls: int = 0
    calls_without_usage: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class CallCache:
    """Completed calls by their request; failed ones are not kept."""

    def __init__(self, file: JsonlFile[_Entry]) -> None:
        """Raises `BadConfig` for a line that it did not write."""
        self._file = file
        self._entries = {entry.key: entry for entry in file}
        self._hits: set[str] = set()
        self._keys: dict[str, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["CallCache"]:
        """Open the cache of a file, which is made where it is not there. Raises `BadConfig`."""
        with closing(JsonlFile(path, _Entry, "remove this line, or begin in a new folder")) as file:
            yield cls(file)

    async def complete(self, model: Model, role: RoleName, prompt: Prompt, key: str) -> Completion:
        """The completion that was kept under `key`, or else the model's; asked for twice at the
        same time, it is asked once. Raises what the model raises, and `StoreFailed`.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if (entry := self._entries.get(key)) is None:
                entry = _Entry(key, role, model.name, await model.complete(prompt))
                self._file.append(entry)
                self._entries[key] = entry
            else:
                self._hits.add(prompt.request_id)
        self._keys[prompt.request_id] = key
        return entry.completion

    def hits(self, calls: Iterable[Call]) -> int:
        """Number of a ledger's calls that cost nothing, as they had been made before."""
        return sum(call.request_id in self._hits for call in calls)

    def key(self, call: Call) -> str | None:
        """The key of a ledger's call, which all calls share that are paid for once. None for one
        that was not asked here, or had no answer.
        """
        return self._keys.get(call.request_id)

    @property
    def spent(self) -> list[Spent]:
        """By role and model, each call once."""
        groups: dict[tuple[RoleName, str], Spent] = {}
        for entry in self._entries.values():
            group = groups.setdefault((entry.role, entry.model), Spent(entry.role, entry.model))
            usage = entry.completion.usage
            group.calls += 1
            group.calls_without_usage += usage is None
            group.prompt_tokens += usage.prompt_tokens if usage else 0
            group.completion_tokens += usage.completion_tokens if usage else 0
        return [group for _, group in sorted(groups.items())]


_LATER_FIELDS = ("unstopped", "raw")
"""Fields of a prompt that are left out of its key unless they are set, so that older keys and
seeds hold.
"""


class CachedModel:
    """A model whose completed calls are kept. `variant`: request options that are sent beside
    the prompt, as JSON.
    """

    def __init__(
        self, model: Model, cache: CallCache, role: RoleName, variant: object = None
    ) -> None:
        self._model = model
        self._cache = cache
        self._role = role
        self.name = model.name
        self.endpoint = model.endpoint
        self._variant = msgspec.json.encode((model.name, variant), order="deterministic")

    async def complete(self, prompt: Prompt) -> Completion:
        """The first completion of this prompt. Raises what the model raises, and `StoreFailed`."""
        fields = msgspec.structs.asdict(msgspec.structs.replace(prompt, request_id=""))
        for name in _LATER_FIELDS:
            if not fields[name]:
                del fields[name]
        request = msgspec.json.encode(fields)
        key = hashlib.sha256(self._variant + b"\n" + request).hexdigest()
        # Each call has its own: the same noise would couple all calls of a seed
        if prompt.sampling.seed is not None:
            sampling = msgspec.structs.replace(prompt.sampling, seed=int(key[:7], 16))
            prompt = msgspec.structs.replace(prompt, sampling=sampling)
        return await self._cache.complete(self._model, self._role, prompt, key)

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        """The whole completion in one piece."""
        whole = await self.complete(prompt)
        on_delta(Delta(whole.text, whole.reasoning, whole.usage))
        return whole

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """The model's own count."""
        return await self._model.count(prompt, text)
