"""A vLLM engine as a child process: started, awaited, stopped."""

import asyncio
import contextlib
import ctypes
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from router.errors import BadConfig
from serving.config import EngineConfig
from serving.versions.loading import MOST_LOADED

_READY_WITHIN_S = 600.0
_STOP_WITHIN_S = 10.0
_ADAPTERS = MOST_LOADED + 1
"""Places for adapters, one more than are ever loaded: without a GPU, vLLM 0.32 lets a model without an adapter compute
with whatever stands in the last place (its index there is -1), which must therefore stay empty.
"""
_LOGS = Path("~/.cache/rolegate/logs")
_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "PYTHONSAFEPATH": "1",  # modules that lie in the working directory are not ours
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
"""What is not set otherwise."""
Tell = Callable[[str], None]


@asynccontextmanager
async def engine(
    name: str, config: EngineConfig, served: list[str], tell: Tell, *, cpu_threads: int = 1, logs: Path = _LOGS
) -> AsyncIterator[str]:
    """Serve a model under the names `served` while the context is open; its base URL, `http://…/v1`.

    `cpu_threads`: for computing without a GPU. Threads of vLLM spin while they wait, so more than there are cores, over
    all engines, make all of them several times slower.

    vLLM's own output goes to a file in the folder `logs`, which is kept where it fails. Raises `BadConfig` where vLLM
    is not installed or does not get ready.
    """
    if importlib.util.find_spec("vllm") is None:
        raise BadConfig(
            f"engines.{name}: vLLM is not installed; install rolegate[cpu] or rolegate[gpu], or use base_url."
        )
    port = _free_port()
    log = logs.expanduser() / f"{name}-{os.getpid()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *_command(config, served, port),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={
                **_ENVIRONMENT,
                **_offline(config),
                **_adapters(config),
                "OMP_NUM_THREADS": str(cpu_threads),
                **os.environ,
            },
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    ready = False
    try:
        tell(f"vLLM engine {name}: loading {Path(config.path).name}")
        await _ready(name, process, port, log)
        ready = True
        tell(f"vLLM engine {name}: ready at http://127.0.0.1:{port}/v1")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        if ready and process.returncode is None:
            log.unlink(missing_ok=True)
        await _stop(process)


def _command(config: EngineConfig, served: list[str], port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", config.path, "--served-model-name", *served),
        *("--host", "127.0.0.1", "--port", str(port)),
        "--enforce-eager",
        "--enable-prompt-tokens-details",
        *(("--enable-lora", "--max-lora-rank", str(config.adapter_rank)) if config.adapter_rank else ()),
        *(("--max-loras", str(_ADAPTERS)) if config.adapter_rank else ()),
        *config.arguments,
    ]


def _adapters(config: EngineConfig) -> dict[str, str]:
    """Adapters come and go while the engine runs."""
    return {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if config.adapter_rank else {}


def _offline(config: EngineConfig) -> dict[str, str]:
    """A model in a folder needs no hub."""
    return {"HF_HUB_OFFLINE": "1"} if Path(config.path).is_absolute() else {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent() -> None:
    """Ask Linux to end this process when its parent dies, however it dies (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


async def _ready(name: str, process: asyncio.subprocess.Process, port: int, log: Path) -> None:
    """Wait until the engine answers its health check."""
    how = f"was not ready within {_READY_WITHIN_S:.0f} s"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_READY_WITHIN_S), aiohttp.ClientSession() as session:
            while process.returncode is None:
                if await _answers(session, f"http://127.0.0.1:{port}/health"):
                    return
                await asyncio.sleep(0.2)
        how = f"ended with code {process.returncode}"
    last = "\n".join(log.read_text("utf-8", "replace").splitlines()[-5:])
    raise BadConfig(f"engines.{name}: vLLM {how}; the end of {log}:\n{last}")


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with session.get(url) as response:
            return response.status == 200
    return False


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the process and all it started: ask first, then make sure."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STOP_WITHIN_S):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
