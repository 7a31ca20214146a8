"""LiteLLM's proxy server with one worker, in front of one model."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from router.errors import RolegateError

_READY_S = 180
_CONFIG = """
model_list:
  - model_name: answerer
    litellm_params: {{model: openai/answerer, api_base: "{base_url}", api_key: none}}
litellm_settings: {{telemetry: false, num_retries: 0}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""


@asynccontextmanager
async def litellm_proxy(python: Path, folder: Path, base_url: str) -> AsyncIterator[tuple[int, str]]:
    """Its process and its base URL while the context is open. `python`: of an environment with `litellm[proxy]`.

    Raises `RolegateError` where it does not begin.
    """
    config, port = folder / "litellm.yaml", _free_port()
    config.write_text(_CONFIG.format(base_url=base_url), "utf-8")
    with (folder / "litellm.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(python.with_name("litellm"), "--config", config, "--host", "127.0.0.1", "--port", str(port)),
            *("--num_workers", "1", "--telemetry", "False"),
            cwd=folder,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
            stdout=log,
            stderr=log,
        )
    try:
        await _ready(f"http://127.0.0.1:{port}/health/liveliness", process, folder / "litellm.log")
        yield process.pid, f"http://127.0.0.1:{port}/v1"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ready(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    try:
        async with asyncio.timeout(_READY_S), aiohttp.ClientSession() as session:
            while process.returncode is None:
                try:
                    async with session.get(url) as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.5)
    except TimeoutError:
        pass
    raise RolegateError(f"LiteLLM's proxy server does not begin: {log.read_text(errors='replace')[-500:]}")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
