"""Published versions are checked, then loaded; what does not fit is never asked for an answer."""

import json
from collections.abc import AsyncIterator, Callable, Container
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from router.errors import BadConfig, BadVersion, UpstreamUnavailable
from serving.config.config import (
    Config,
    EngineConfig,
    RetrievalConfig,
    RoleConfig,
    RolesConfig,
    VersionsConfig,
)
from serving.engines.loading import MOST_LOADED, Loading
from serving.engines.versions import VersionManifest, base_sha256, write_version
from tests.router.vllm_adapters import BASE, AdapterServer, adapter_server

ROLE = RoleConfig(model=BASE, prompt="prompt.txt")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def server() -> AsyncIterator[AdapterServer]:
    async with adapter_server() as server:
        yield server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of the base model."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def published(tmp_path: Path, model: Path, **changed: Any) -> Path:
    """The folder of a new version."""
    content = tmp_path / "content"
    content.mkdir(exist_ok=True)
    (content / "adapter_config.json").write_text(json.dumps({"r": 8}))
    manifest = VersionManifest(
        version="",
        kind="adapter",
        base_model=BASE,
        base_sha256=base_sha256(model),
        rank=8,
        recipe={},
        data={},
        git_revision="",
        created_at="2026-01-01T00:00:00+00:00",
        files={},
    )
    return write_version(
        tmp_path / "versions", content, msgspec.structs.replace(manifest, **changed)
    )


def config(
    tmp_path: Path, role: RoleConfig, model: Path | None = None, start: Path | None = None
) -> Config:
    """What serves one executor."""
    return Config(
        roles=RolesConfig(delegation=ROLE, execution=role, answer=ROLE),
        retrieval=RetrievalConfig(address="127.0.0.1:9"),
        engines={"executor": EngineConfig(path=str(model), adapter_rank=32)} if model else {},
        versions=VersionsConfig(folder=f"{tmp_path}/versions", start=str(start) if start else None),
    )


Opened = Callable[..., Loading]


@pytest.fixture
def on_engine(
    tmp_path: Path, model: Path, server: AdapterServer, session: aiohttp.ClientSession
) -> Opened:
    """Loading into an engine of ours; `start`: the folder of the first version."""
    role = msgspec.structs.replace(ROLE, engine="executor")
    engines = {"executor": server.base_url}

    def opened(start: Path | None = None, in_use: Container[str] = ()) -> Loading:
        return Loading(config(tmp_path, role, model, start), engines, session, lambda: in_use)

    return opened


async def test_a_version_is_loaded_under_its_name(
    tmp_path: Path, model: Path, server: AdapterServer, on_engine: Opened
) -> None:
    """Its manifest is given back, as it is on record."""
    folder = published(tmp_path, model)
    manifest = await on_engine().load("executor-000001")
    assert server.adapters == {"executor-000001": str(folder)}
    assert msgspec.json.decode(manifest, type=VersionManifest).version == "executor-000001"


async def test_an_engine_of_others_loads_too(
    tmp_path: Path,
    model: Path,
    server: AdapterServer,
    session: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At its address, with its key; its model's files are not known, so that only the model's
    name is compared.
    """
    monkeypatch.setenv("ENGINE_KEY", "secret")
    published(tmp_path, model, base_sha256="0" * 64)
    role = msgspec.structs.replace(ROLE, base_url=server.base_url, api_key_env="ENGINE_KEY")
    await Loading(config(tmp_path, role), {}, session).load("executor-000001")
    assert list(server.adapters) == ["executor-000001"]
    assert set(server.keys) == {"Bearer secret"}


async def test_every_replica_loads_it(
    tmp_path: Path, model: Path, server: AdapterServer, session: aiohttp.ClientSession
) -> None:
    """One that is away does without for now; only where none can be reached is that an error."""
    published(tmp_path, model, base_sha256="0" * 64)
    async with adapter_server() as other:
        role = msgspec.structs.replace(
            ROLE, base_url=server.base_url, replicas=(other.base_url, "http://127.0.0.1:9")
        )
        loading = Loading(config(tmp_path, role), {}, session)
        await loading.load("executor-000001")
        assert list(server.adapters) == list(other.adapters) == ["executor-000001"]
        server.adapters.clear()
        await loading.load("executor-000001")
        assert list(server.adapters) == ["executor-000001"]
    away = msgspec.structs.replace(ROLE, base_url="http://127.0.0.1:9")
    with pytest.raises(UpstreamUnavailable):
        await Loading(config(tmp_path, away), {}, session).load("executor-000001")


@pytest.mark.parametrize(
    "case",
    [
        (
            {"base_model": "other"},
            r"trained on other \(SHA-256 .*\), and the engine serves mini-executor",
        ),
        (
            {"base_sha256": "0" * 64},
            r"trained on mini-executor \(SHA-256 0{64}\), and the engine serves mini-executor",
        ),
        ({"kind": "weights"}, r"holds whole weights.* name it in roles\.execution\.model"),
    ],
)
async def test_a_version_that_does_not_fit(
    tmp_path: Path,
    model: Path,
    server: AdapterServer,
    on_engine: Opened,
    case: tuple[dict[str, Any], str],
) -> None:
    """The message names both and says what to do; the engine is not asked."""
    changed, said = case
    published(tmp_path, model, **changed)
    with pytest.raises(BadVersion, match=said):
        await on_engine().load("executor-000001")
    assert not server.keys


async def test_a_damaged_version_is_never_loaded(
    tmp_path: Path, model: Path, server: AdapterServer, on_engine: Opened
) -> None:
    """Nor one that is not there. One whose base was no folder is loaded without comparing that."""
    (published(tmp_path, model) / "adapter_config.json").write_text('{"r": 9}')
    published(tmp_path, model, base_sha256="")
    for name in ("executor-000001", "executor-000003"):
        with pytest.raises(BadVersion, match=name):
            await on_engine().load(name)
    assert not server.keys
    await on_engine().load("executor-000002")
    assert list(server.adapters) == ["executor-000002"]


async def test_the_engine_forgets_what_is_not_in_use(
    tmp_path: Path, model: Path, server: AdapterServer, on_engine: Opened
) -> None:
    """The version that was asked for longest ago, once there is no more room; and it can come
    back.
    """
    names = [published(tmp_path, model).name for _ in range(MOST_LOADED + 1)]
    loading = on_engine(in_use={names[0]})
    for name in (*names[:-1], names[1], names[-1]):
        await loading.load(name)
    assert set(server.adapters) == {*names} - {names[2]}
    await loading.load(names[2])
    assert set(server.adapters) == {*names} - {names[3]}


async def test_what_another_gateway_has_loaded_counts(
    on_engine: Opened, server: AdapterServer, tmp_path: Path, model: Path
) -> None:
    """The engine's places are for all; what is not known here to be in use goes first of all
    that is.
    """
    one = on_engine()
    other = on_engine()
    names = [published(tmp_path, model).name for _ in range(MOST_LOADED + 2)]
    for number, name in enumerate(names):
        await (one, other)[number % 2].load(name)
        assert len(server.adapters) <= MOST_LOADED
    assert names[-1] in server.adapters


async def test_an_engine_whose_versions_are_all_in_use(
    tmp_path: Path, model: Path, server: AdapterServer, on_engine: Opened
) -> None:
    """It takes no further one, and keeps those that it has."""
    names = [published(tmp_path, model).name for _ in range(MOST_LOADED + 1)]
    loading = on_engine(in_use=names)
    for name in names[:-1]:
        await loading.load(name)
    with pytest.raises(
        BadVersion,
        match=rf"{names[-1]}: the engine has {MOST_LOADED} versions that runs are working",
    ):
        await loading.load(names[-1])
    assert list(server.adapters) == names[:-1]


async def test_a_provider_loads_none(
    tmp_path: Path, model: Path, session: aiohttp.ClientSession
) -> None:
    """There is no engine to load it into."""
    published(tmp_path, model)
    with pytest.raises(BadVersion, match=r"set roles\.execution\.engine"):
        await Loading(config(tmp_path, ROLE), {}, session).load("executor-000001")


async def test_the_first_version_may_lie_anywhere(
    tmp_path: Path, model: Path, server: AdapterServer, on_engine: Opened
) -> None:
    """It is loaded from where the config says; without one, the model itself is the first; a broken
    one is the config's fault.
    """
    start = published(tmp_path, model).rename(tmp_path / "executor-000001")
    first = await on_engine(start).first()
    assert first is not None
    assert (first[0], server.adapters) == ("executor-000001", {"executor-000001": str(start)})
    assert await on_engine().first() is None
    (start / "manifest.json").unlink()
    with pytest.raises(BadConfig, match=r"^versions\.start: .*manifest\.json"):
        await on_engine(start).first()
