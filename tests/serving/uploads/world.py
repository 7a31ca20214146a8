"""A gateway that accepts uploads, with keys for two tenants and for the operator."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rolegate.client import AsyncClient

from router.access import new_key
from router.store import Database, SQLAccounts
from router.trace.identity import SCOPES, KeyScope
from serving.composition import running_gateway
from serving.config.file import load_config
from serving.retrieval.build import build_index
from serving.retrieval.embedder import Vectors
from tests.openai_server import serving, writes
from tests.ports import free_port
from tests.serving.test_indexes import Caller, script

DEFAULT_WORD = "Dandelion"
"""The secret word in the index of `[retrieval]`."""


def archive(word: str) -> bytes:
    """Return a document that answers the question of `script` with `word`."""
    return f"The password of the archive is {word}. It is kept in a safe.\n".encode()


class Constant:
    """The embedder that the scripted endpoint is: all texts are alike."""

    identity = "vectors"
    dimension = 8
    max_tokens = 256

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        return np.full((len(texts), 8), 8**-0.5, np.float32)


@dataclass
class World:
    """A gateway with uploads, which can be restarted, and its callers by name."""

    folder: Path
    config: Path
    door: str
    keys: dict[str, str] = field(default_factory=dict)
    callers: dict[str, Caller] = field(default_factory=dict)

    @property
    def documents(self) -> Path:
        """The folder of acme's documents."""
        return self.folder / "uploads/acme/documents"

    def client(self, name: str = "acme") -> AsyncClient:
        return self.callers[name].client()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the gateway while the context is open."""
        config = load_config(self.config)
        gateway = running_gateway(config, "127.0.0.1:0", lambda _line: None, self.door)
        async with gateway as address, AsyncExitStack() as stack:
            for name, key in self.keys.items():
                tenant = None if name.startswith("operator") else name.partition(" ")[0]
                self.callers[name] = Caller(tenant, key, stack, address, f"http://{self.door}")
            yield


def write_config(folder: Path, models: str, door: str, uploads: str) -> Path:
    """Write a config with an index of one document; `uploads`: lines of `[uploads]`."""
    (folder / "prompt.txt").write_text("Do it.\n", "utf-8")
    (folder / "archive.txt").write_bytes(archive(DEFAULT_WORD))
    build_index([folder / "archive.txt"], folder / "index", Constant())
    roles = {"delegation": "delegator", "execution": "executor", "answer": "answerer"}
    tables = [
        f'[server]\nstore = "sqlite:///runs.db"\nhttp = "{door}"\ngrace_s = 1.0',
        "[search]\naccess = true\nmax_searches = 3\nmax_turns = 5",
        *(
            f'[roles.{role}]\nmodel = "{model}"\nbase_url = "{models}"\nprompt = "prompt.txt"'
            for role, model in roles.items()
        ),
        '[retrieval]\nindex = "index"',
        f'[retrieval.embedder]\nbase_url = "{models}"\nmodel = "vectors"\ndimension = 8',
        uploads,
    ]
    (folder / "my.toml").write_text("\n".join(tables), "utf-8")
    return folder / "my.toml"


FOLDER = '[uploads]\nfolder = "uploads"\n'


@asynccontextmanager
async def world_of(folder: Path, uploads: str = FOLDER) -> AsyncIterator[World]:
    """Yield a world whose gateway does not run yet."""
    async with serving(recording=False) as models:
        models.plays(writes(script))
        door = f"127.0.0.1:{free_port()}"
        path = await asyncio.to_thread(write_config, folder, models.base_url, door, uploads)
        world = World(folder, path, door)
        database = await Database.open(load_config(path).server.store)
        accounts = SQLAccounts(database)
        asks: frozenset[KeyScope] = frozenset(("ask",))
        manages: frozenset[KeyScope] = frozenset(("ask", "documents"))
        for name, tenant, scopes in (
            ("acme", "acme", manages),
            ("beta", "beta", manages),
            ("acme asks", "acme", asks),
            ("operator", None, SCOPES),
        ):
            world.keys[name], key = new_key(tenant, scopes)
            await accounts.add_key(key)
        await database.close()
        yield world
