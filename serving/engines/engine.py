"""A vLLM engine as a child process: started, kept running, stopped."""

import importlib.metadata
import importlib.util
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from router.errors import BadConfig
from router.runs.live import meanwhile
from serving.config.config import EngineConfig
from serving.engines.loading import MOST_LOADED
from serving.engines.process import Say, ServerProcess, Watch, keep_running

_CPUINFO = Path("/proc/cpuinfo")
_BF16 = {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"}
"""Of x86 and of ARM."""


def cores() -> int:
    """How many this process is bound to, or else how many there are; a quota on their time is not seen."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def computes_in_bf16(described: Path = _CPUINFO) -> bool:
    """Whether it has instructions for that, by the system's description of it; taken for granted without one."""
    try:
        text = described.read_text()
    except OSError:
        return True
    lines = (line.partition(":") for line in text.splitlines())
    features = next((value.split() for name, _, value in lines if name.strip() in ("flags", "Features")), None)
    return features is None or not _BF16.isdisjoint(features)


def precision(arguments: Sequence[str], *, on_cpu: bool, bf16: bool) -> tuple[str, ...]:
    """What to add to these arguments of vLLM. Emulating bf16 takes half as long again as computing in fp32."""
    chosen = any(argument.partition("=")[0] == "--dtype" for argument in arguments)
    return () if chosen or bf16 or not on_cpu else ("--dtype", "float32")


_ADAPTERS = MOST_LOADED + 1
"""Places for adapters, one more than are ever loaded: without a GPU, vLLM 0.32 lets a model without an adapter compute
with whatever stands in the last place (its index there is -1), which must therefore stay empty.
"""
_LOGS = Path("~/.cache/rolegate/logs")
_BOUND = "VLLM_CPU_OMP_THREADS_BIND"
_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "PYTHONSAFEPATH": "1",  # modules that lie in the working directory are not ours
    "VLLM_CPU_KVCACHE_SPACE": "1",
    _BOUND: "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
"""What is not set otherwise."""
_WITHOUT_WORKER = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""On a CPU, vLLM puts the worker of an engine beside its core, and both spin while they wait for each other. Only a
worker of its own can bind threads to cores; ours are bound nowhere.
"""
Tell = Callable[[str], None]


@asynccontextmanager
async def engine(
    name: str,
    config: EngineConfig,
    served: list[str],
    tell: Tell,
    *,
    cpu_threads: int = 1,
    logs: Path = _LOGS,
    say: Say = lambda _why: None,
) -> AsyncIterator[str]:
    """Serve a model under the names `served` while the context is open; its base URL, `http://…/v1`. Should it die or
    hang, it is started again at the same address, without its adapters; `say` hears of it.

    `cpu_threads`: for computing without a GPU. Threads of vLLM spin while they wait, so more than there are cores, over
    all engines, make all of them several times slower. A computation that hangs there is not noticed here, as health
    checks are answered beside it; calls of it end by their own timeouts.

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
    log.unlink(missing_ok=True)
    environment = _environment(config, cpu_threads)
    command, patience = _command(config, served, port), config.ready_within_s
    process = ServerProcess(f"engines.{name}: vLLM", command, port, log, environment, ready_within_s=patience)
    good = False

    def hear(why: str | None) -> None:
        nonlocal good
        good = False
        say(why)

    try:
        tell(f"vLLM engine {name}: loading {Path(config.path).name}")
        await process.start()
        good = True
        tell(f"vLLM engine {name}: ready at http://127.0.0.1:{port}/v1")
        async with meanwhile(keep_running(process, hear, Watch(within_s=config.health_timeout_s))):
            yield f"http://127.0.0.1:{port}/v1"
    finally:
        await process.stop()
        if good:
            log.unlink(missing_ok=True)


def _command(config: EngineConfig, served: list[str], port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", config.path, "--served-model-name", *served),
        *("--host", "127.0.0.1", "--port", str(port)),
        "--enforce-eager",
        "--enable-prompt-tokens-details",
        *(("--enable-lora", "--max-lora-rank", str(config.adapter_rank)) if config.adapter_rank else ()),
        *(("--max-loras", str(_ADAPTERS)) if config.adapter_rank else ()),
        *precision(config.arguments, on_cpu=_on_cpu(), bf16=computes_in_bf16()),
        *config.arguments,
    ]


def _on_cpu() -> bool:
    """Whether vLLM is its build for CPUs."""
    try:
        importlib.metadata.distribution("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _environment(config: EngineConfig, cpu_threads: int) -> dict[str, str]:
    return {
        **_ENVIRONMENT,
        **_offline(config),
        **_adapters(config),
        **(_WITHOUT_WORKER if _on_cpu() and _BOUND not in os.environ else {}),
        "OMP_NUM_THREADS": str(cpu_threads),
    }


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
