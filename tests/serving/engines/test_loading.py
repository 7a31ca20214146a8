"""Published versions are checked, then loaded; a version that does not fit is never loaded."""

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
from serving.engines.loading import MAX_LOADED, Loading
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
    """Return the folder of the base model."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def published(tmp_path: Path, model: Path, **changed: Any) -> Path:
    """Return the folder of a new version."""
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
    """Return a config with one executor."""
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
    """Return a `Loading` for our engine; `start`: the folder of the start version."""
    role = msgspec.structs.replace(ROLE, engine="executor")
    engines = {"executor": server.base_url}

    def opened(start: Path | None = None, in_use: Container[str] = ()) -> Loading:
        return Loading(config(tmp_path, role, model, start), engines, session, lambda: in_use)

    return opened


async def test_a_version_is_loaded_under_its_name(
    tmp_path: Path, model: Path, server: AdapterServer, on_engine: Opened
) -> None:
    """The manifest is returned as it is stored."""
    folder = published(tmp_path, model)
    manifest = await on_engine().load("executor-000001")
    assert server.adapters == {"executor-000001": str(folder)}
    assert msgspec.json.decode(manifest, type=VersionManifest).version == "executor-000001"


async def test_a_foreign_engine_loads_versions(
    tmp_path: Path,
    model: Path,
    server: AdapterServer,
    session: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is called at its address with its key; only the name of its model is compared."""
    monkeypatch.setenv("ENGINE_KEY", "secret")
    published(tmp_path, model, base_sha256="0" * 64)
    role = msgspec.structs.replace(ROLE, base_url=server.base_url, api_key_env="ENGINE_KEY")
    await Loading(config(tmp_path, role), {}, session).load("executor-000001")
    assert list(server.adapters) == ["executor-000001"]
    assert set(server.keys) == {"Bearer secret"}


async def test_every_replica_loads_the_version(
    tmp_path: Path, model: Path, server: AdapterServer, session: aiohttp.ClientSession
) -> None:
    """Replicas that are down are skipped; it is an error only if none can be reached."""
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
        ({"kind": "weights"}, r"contains full weights.* name it in roles\.execution\.model"),
    ],
)
async def test_a_version_of_another_model_is_refused(
    tmp_path: Path,
    model: Path,
    server: AdapterServer,
    on_engine: Opened,
    case: tuple[dict[str, Any], str],
) -> None:
    """The message names both models and what to do; the engine is not called."""
    changed, message = case
    published(tmp_path, model, **changed)
    with pytest.raises(BadVersion, match=message):
        await on_engine().load("executor-000001")
    assert not server.keys


async def test_a_damaged_version_is_never_loaded(
    tmp_path: Path, model: Path, server: AdapterServer, on_engine: Opened
) -> None:
    """Damaged and missing versions are refused; an unknown base digest is not compared."""
    (published(tmp_path, model) / "adapter_config.json").write_text('{"r": 9}')
    published(tmp_path, model, base_sha256="")
    for name in ("executor-000001", "executor-000003"):
        with pytest.raises(BadVersion, match=name):
            await on_engine().load(name)
    assert not server.keys
    await on_engine().load("executor-000002")
    assert list(server.adapters) == ["executor-000002"]


async def test_unused_versions_are_unloaded(
    tmp_path: Path, model: Path, server: AdapterServer, on_engine: Opened
) -> None:
    """The least recently requested version is unloaded for a new one, and can be loaded again."""
    names = [published(tmp_path, model).name for _ in range(MAX_LOADED + 1)]
    loading = on_engine(in_use={names[0]})
    for name in (*names[:-1], names[1], names[-1]):
        await loading.load(name)
    assert set(server.adapters) == {*names} - {names[2]}
    await loading.load(names[2])
    assert set(server.adapters) == {*names} - {names[3]}


async def test_versions_of_other_gateways_count(
    on_engine: Opened, server: AdapterServer, tmp_path: Path, model: Path
) -> None:
    """The slots of an engine are shared by its gateways."""
    loading = on_engine()
    other_loading = on_engine()
    names = [published(tmp_path, model).name for _ in range(MAX_LOADED + 2)]
    for number, name in enumerate(names):
        await (loading, other_loading)[number % 2].load(name)
        assert len(server.adapters) <= MAX_LOADED
    assert names[-1] in server.adapters


async def test_a_version_is_refused_if_all_loaded_versions_are_in_use(
    tmp_path: Path, model: Path, server: AdapterServer, on_engine: Opened
) -> None:
    """The loaded versions stay."""
    names = [published(tmp_path, model).name for _ in range(MAX_LOADED + 1)]
    loading = on_engine(in_use=names)
    for name in names[:-1]:
        await loading.load(name)
    with pytest.raises(
        BadVersion,
        match=rf"{names[-1]}: was not loaded, because the engine holds at most {MAX_LOADED}",
    ):
        await loading.load(names[-1])
    assert list(server.adapters) == names[:-1]


async def test_a_provider_loads_no_versions(
    tmp_path: Path, model: Path, session: aiohttp.ClientSession
) -> None:
    """A provider has no engine for versions."""
    published(tmp_path, model)
    with pytest.raises(BadVersion, match=r"set roles\.execution\.engine"):
        await Loading(config(tmp_path, ROLE), {}, session).load("executor-000001")


async def test_the_first_version_may_be_in_any_folder(
    tmp_path: Path, model: Path, server: AdapterServer, on_engine: Opened
) -> None:
    """It is loaded from the configured folder.

    Without one, the base model is active; a damaged version is an error of the config.
    """
    start = published(tmp_path, model).rename(tmp_path / "executor-000001")
    first = await on_engine(start).first()
    assert first is not None
    assert (first[0], server.adapters) == ("executor-000001", {"executor-000001": str(start)})
    assert await on_engine().first() is None
    (start / "manifest.json").unlink()
    with pytest.raises(BadConfig, match=r"^versions\.start: .*manifest\.json"):
        await on_engine(start).first()
