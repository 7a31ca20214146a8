"""Adapters of a running engine: they are loaded once, and refusals say what to do."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from router.errors import BadVersion, UpstreamUnavailable
from router.models.adapters import Adapters
from tests.router.vllm_adapters import BASE, adapter_server

NAME = "executor-000001"
SHAPES = (
    "The size of tensor a (192) must match the size of tensor b (256) at non-singleton dimension 1"
)


def adapter(folder: Path, rank: int = 8) -> Path:
    """Return a folder that looks like an adapter."""
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return folder


async def test_an_adapter_is_loaded_once(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    """A second load does nothing, even if the folder is gone."""
    async with adapter_server() as server:
        adapters = Adapters(session, server.base_url, "secret")
        assert await adapters.load(NAME, adapter(tmp_path))
        assert not await adapters.load(NAME, tmp_path / "gone")
        assert server.adapters == {NAME: str(tmp_path)}
        assert server.keys == ["Bearer secret"] * 3


async def test_an_adapter_can_be_unloaded(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Unloading what is not loaded, or from a server that is gone, does nothing."""
    async with adapter_server() as server:
        adapters = Adapters(session, server.base_url)
        await adapters.load(NAME, adapter(tmp_path))
        await adapters.unload(NAME)
        await adapters.unload(NAME)
        assert server.adapters == {}
    await adapters.unload(NAME)


async def test_sglang_s_route_is_found(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with adapter_server(root="") as server:
        assert await Adapters(session, server.base_url).load(NAME, adapter(tmp_path))
        assert server.adapters == {NAME: str(tmp_path)}


async def test_gateways_may_load_an_adapter_together(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """A reply that the adapter is loaded already counts as success."""
    async with adapter_server() as server:
        folder = adapter(tmp_path)
        await asyncio.gather(
            *(Adapters(session, server.base_url).load(NAME, folder) for _ in range(4))
        )
        assert len(server.keys) == 4 + 4 + 3
        assert server.adapters == {NAME: str(folder)}


async def test_an_adapter_may_not_have_a_model_s_name(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Otherwise the model itself would answer."""
    async with adapter_server() as server:
        with pytest.raises(BadVersion, match="already serves a base model of that name"):
            await Adapters(session, server.base_url).load(BASE, adapter(tmp_path))


async def test_a_rank_that_is_too_large_is_refused(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """The error has both ranks, and the key that allows a larger one."""
    async with adapter_server() as server:
        with pytest.raises(
            BadVersion, match=r"rank is 64, but the engine allows at most 32; raise engines"
        ):
            await Adapters(session, server.base_url).load(NAME, adapter(tmp_path, rank=64))
        assert server.adapters == {}


async def test_a_folder_that_the_engine_cannot_see_is_refused(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """It may exist here, and not on the engine's machine."""
    async with adapter_server() as server:
        with pytest.raises(
            BadVersion,
            match=f"no adapter in {tmp_path}/gone; make this folder exist on the eng",
        ):
            await Adapters(session, server.base_url).load(NAME, tmp_path / "gone")


async def test_an_engine_without_adapters_is_refused(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """The error says how to start the engine."""
    async with adapter_server(updating=False) as server:
        with pytest.raises(
            BadVersion, match=r"set engines\.NAME.adapter_rank, or start it with --enable-lora"
        ):
            await Adapters(session, server.base_url).load(NAME, adapter(tmp_path))


async def test_an_engine_that_is_away_is_unavailable(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with adapter_server() as server:
        url = server.base_url
    with pytest.raises(UpstreamUnavailable, match=f"adapter {NAME} was not loaded"):
        await Adapters(session, url).load(NAME, adapter(tmp_path))
