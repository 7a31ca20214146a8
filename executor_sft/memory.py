"""What models have said, kept by what they were asked, so that nothing is paid for twice."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from executor_sft.lines import LineFile
from router.errors import BadConfig
from router.models.model import Completion, Delta, Model, Prompt, Usage
from router.trace.call import Call, RoleName


class _Kept(msgspec.Struct, frozen=True):
    """A line of the file."""

    key: str
    role: RoleName
    model: str
    completion: Completion


class Spent(msgspec.Struct, frozen=True):
    """What a role's model was paid for."""

    role: RoleName
    model: str
    calls: int
    calls_without_usage: int
    prompt_tokens: int
    completion_tokens: int


class Memory:
    """Completed calls. One that is asked again gets what was said then; failed ones are not kept."""

    def __init__(self, file: LineFile) -> None:
        """Raises `BadConfig` for a line that it did not write."""
        self._file = file
        self._kept: dict[str, _Kept] = {}
        self._recalled: set[str] = set()
        self._asked: dict[str, str] = {}
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        for number, line in enumerate(file.lines(), 1):
            try:
                kept = msgspec.json.decode(line, type=_Kept)
            except msgspec.DecodeError as error:
                raise BadConfig(f"{file.path}:{number}: {error}; remove this line, or begin in a new folder.") from None
            self._kept[kept.key] = kept

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["Memory"]:
        """That of a file, which is made where it is not there. Raises `BadConfig`."""
        file = LineFile(path)
        try:
            yield cls(file)
        finally:
            file.close()

    def remembering(self, model: Model, role: RoleName, variant: object = None) -> "RememberingModel":
        """`model` with this memory. `variant`: what is sent beside the prompt and changes what is said, as JSON."""
        return RememberingModel(model, self, role, variant)

    async def ask(self, model: Model, role: RoleName, prompt: Prompt, key: str) -> Completion:
        """What was said, or else what `model` says now; asked for twice at the same time, it is asked once. Raises what
        the model raises, and `StoreFailed`.
        """
        lock = self._asking.setdefault(key, asyncio.Lock())
        async with lock:
            if (kept := self._kept.get(key)) is None:
                kept = _Kept(key, role, model.name, await model.complete(prompt))
                self._file.append(msgspec.json.encode(kept))
                self._kept[key] = kept
            else:
                self._recalled.add(prompt.request_id)
        self._asked[prompt.request_id] = key
        return kept.completion

    def recalled(self, calls: Iterable[Call]) -> int:
        """How many of a ledger's calls cost nothing, as they had been made before."""
        return sum(call.request_id in self._recalled for call in calls)

    def key(self, call: Call) -> str | None:
        """What a ledger's call asked, as a digest: that of all calls which are paid for once. None for what was not
        asked here, or had no answer.
        """
        return self._asked.get(call.request_id)

    @property
    def spent(self) -> list[Spent]:
        """By role and model, each call once."""
        groups: dict[tuple[RoleName, str], list[Usage | None]] = {}
        for kept in self._kept.values():
            groups.setdefault((kept.role, kept.model), []).append(kept.completion.usage)
        return [_spent(role, model, usages) for (role, model), usages in sorted(groups.items())]


class RememberingModel:
    """A model whose completed calls are kept."""

    def __init__(self, model: Model, memory: Memory, role: RoleName, variant: object) -> None:
        self._model, self._memory, self._role = model, memory, role
        self.name, self.endpoint = model.name, model.endpoint
        self._variant = msgspec.json.encode((model.name, variant), order="deterministic")

    async def complete(self, prompt: Prompt) -> Completion:
        """As it was said the first time. Raises what the model raises, and `StoreFailed`."""
        asked = msgspec.structs.asdict(msgspec.structs.replace(prompt, request_id=""))
        if prompt.pattern is None:
            del asked["pattern"]  # as before there were any
        key = hashlib.sha256(self._variant + b"\n" + msgspec.json.encode(asked)).hexdigest()
        return await self._memory.ask(self._model, self._role, prompt, key)

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Delta]]:
        """The whole of it in one piece."""
        said = await self.complete(prompt)

        async def pieces() -> AsyncIterator[Delta]:
            yield Delta(said.text, said.reasoning, said.finish_reason, said.usage, said.overran)

        yield pieces()

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """As the model counts."""
        return await self._model.count(prompt, text)


def _spent(role: RoleName, model: str, usages: Iterable[Usage | None]) -> Spent:
    every = list(usages)
    known = [usage for usage in every if usage is not None]
    prompt_tokens = sum(usage.prompt_tokens for usage in known)
    return Spent(
        role,
        model,
        len(every),
        len(every) - len(known),
        prompt_tokens,
        sum(usage.completion_tokens for usage in known),
    )
