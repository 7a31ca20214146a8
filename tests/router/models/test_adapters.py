"""Adapters of a running engine: loaded once, and refusals in words that tell what to do."""

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
    """A folder that looks like an adapter."""
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return folder


async def test_an_adapter_is_loaded_once(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    """The second time there is nothing to be done, even if its folder is gone."""
    async with adapter_server() as server:
        adapters = Adapters(session, server.base_url, "secret")
        assert await adapters.load(NAME, adapter(tmp_path))
        assert not await adapters.load(NAME, tmp_path / "gone")
        assert server.adapters == {NAME: str(tmp_path)}
        assert server.keys == ["Bearer secret"] * 3


async def test_an_adapter_is_forgotten(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    """What was loaded can be taken out again, and of what was not, or of a server that is gone,
    nothing is heard.
    """
    async with adapter_server() as server:
        adapters = Adapters(session, server.base_url)
        await adapters.load(NAME, adapter(tmp_path))
        await adapters.unload(NAME)
        await adapters.unload(NAME)
        assert server.adapters == {}
    await adapters.unload(NAME)


async def test_sglang(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Its route stands elsewhere."""
    async with adapter_server(root="") as server:
        assert await Adapters(session, server.base_url).load(NAME, adapter(tmp_path))
        assert server.adapters == {NAME: str(tmp_path)}


async def test_gateways_that_load_at_once(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    """All but one are told that it is there already, which is what they want."""
    async with adapter_server() as server:
        folder = adapter(tmp_path)
        await asyncio.gather(
            *(Adapters(session, server.base_url).load(NAME, folder) for _ in range(4))
        )
        assert len(server.keys) == 4 + 4 + 3
        assert server.adapters == {NAME: str(folder)}


async def test_the_name_of_a_model_is_taken(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    """It would be taken for loaded, and the model itself would answer."""
    async with adapter_server() as server:
        with pytest.raises(BadVersion, match="serves a model of that name already"):
            await Adapters(session, server.base_url).load(BASE, adapter(tmp_path))


async def test_a_rank_that_is_too_large(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Both ranks are told, and the key that allows a larger one."""
    async with adapter_server() as server:
        with pytest.raises(
            BadVersion, match=r"its rank is 64, and the engine takes 32 at most; raise engines"
        ):
            await Adapters(session, server.base_url).load(NAME, adapter(tmp_path, rank=64))
        assert server.adapters == {}


async def test_a_folder_that_is_not_there(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    """It may be here, and not where the engine runs."""
    async with adapter_server() as server:
        with pytest.raises(
            BadVersion,
            match=f"no adapter in {tmp_path}/gone; the folder must be there where the eng",
        ):
            await Adapters(session, server.base_url).load(NAME, tmp_path / "gone")


async def test_an_engine_that_loads_none(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    """How it must be started is told."""
    async with adapter_server(updating=False) as server:
        with pytest.raises(
            BadVersion, match=r"set engines\.….adapter_rank, or start it with --enable-lora"
        ):
            await Adapters(session, server.base_url).load(NAME, adapter(tmp_path))


async def test_an_engine_that_is_not_there(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    """It may come back."""
    async with adapter_server() as server:
        url = server.base_url
    with pytest.raises(UpstreamUnavailable, match=f"loading {NAME} failed"):
        await Adapters(session, url).load(NAME, adapter(tmp_path))
