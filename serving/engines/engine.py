"""A vLLM engine as a child process: started, kept running, stopped."""

import importlib.metadata
import importlib.util
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from router.background import background_tasks
from router.errors import BadConfig
from serving.config.config import EngineConfig
from serving.engines.loading import MOST_LOADED
from serving.engines.process import OnChange, ServerProcess, Watch, keep_running

Log = Callable[[str], None]
"""Gets lines for people."""

_CPUINFO = Path("/proc/cpuinfo")
_BF16 = {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"}
"""Of x86 and of ARM."""
_ADAPTERS = MOST_LOADED + 1
"""Places for adapters, one more than are ever loaded: without a GPU, vLLM 0.32 lets a model without
an adapter compute with whatever stands in the last place (its index there is -1), which must
therefore stay empty.
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
"""Variables that are not set otherwise."""


def cores() -> int:
    """The number of cores that this process is bound to, or else that there are; a quota on
    their time is not seen.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def computes_in_bf16(described: Path = _CPUINFO) -> bool:
    """Tell whether the processor has instructions for bf16, by the system's description;
    without one, it has.
    """
    try:
        text = described.read_text()
    except OSError:
        return True
    lines = (line.partition(":") for line in text.splitlines())
    features = next(
        (value.split() for name, _, value in lines if name.strip() in ("flags", "Features")), None
    )
    return features is None or not _BF16.isdisjoint(features)


def precision(arguments: Sequence[str], *, on_cpu: bool, bf16: bool) -> tuple[str, ...]:
    """Options to add to these arguments of vLLM. Emulating bf16 takes half as long again as
    computing in fp32.
    """
    chosen = any(argument.partition("=")[0] == "--dtype" for argument in arguments)
    return () if chosen or bf16 or not on_cpu else ("--dtype", "float32")


@asynccontextmanager
async def engine(
    name: str,
    config: EngineConfig,
    served: list[str],
    log: Log,
    *,
    cpu_threads: int = 1,
    logs: Path = _LOGS,
    on_change: OnChange = lambda _reason: None,
) -> AsyncIterator[str]:
    """Serve a model under the names `served` while the context is open; its base URL,
    `http://…/v1`. Should it die or hang, `on_change` is called, and it is started again at the same
    address, without its adapters.

    `cpu_threads`: for computing without a GPU. Threads of vLLM spin while they wait, so more than
    there are cores, over all engines, make all of them several times slower. A computation that
    hangs there is not noticed here, as health checks are answered beside it; calls of it end by
    their own timeouts.

    vLLM's own output goes to a file in the folder `logs`, which is kept where it fails. Raises
    `BadConfig` where vLLM is not installed or does not get ready.
    """
    if importlib.util.find_spec("vllm") is None:
        raise BadConfig(
            f"engines.{name}: vLLM is not installed; install rolegate[cpu] or "
            "rolegate[gpu], or use base_url."
        )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    output = logs.expanduser() / f"{name}-{os.getpid()}.log"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    process = ServerProcess(
        f"engines.{name}: vLLM",
        _command(config, served, port),
        port,
        output,
        _environment(config, cpu_threads),
        ready_within_s=config.ready_within_s,
    )
    failed = True

    def changed(reason: str | None) -> None:
        nonlocal failed
        failed = True
        on_change(reason)

    try:
        log(f"vLLM engine {name}: loading {Path(config.path).name}")
        await process.start()
        failed = False
        log(f"vLLM engine {name}: ready at http://127.0.0.1:{port}/v1")
        async with background_tasks(
            keep_running(process, changed, Watch(within_s=config.health_timeout_s))
        ):
            yield f"http://127.0.0.1:{port}/v1"
    finally:
        await process.stop()
        if not failed:
            output.unlink(missing_ok=True)


def _command(config: EngineConfig, served: list[str], port: int) -> list[str]:
    adapters = (
        "--enable-lora",
        "--max-lora-rank",
        str(config.adapter_rank),
        "--max-loras",
        str(_ADAPTERS),
    )
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", config.path, "--served-model-name", *served),
        *("--host", "127.0.0.1", "--port", str(port)),
        "--enforce-eager",
        "--enable-prompt-tokens-details",
        *(adapters if config.adapter_rank else ()),
        *precision(config.arguments, on_cpu=_on_cpu(), bf16=computes_in_bf16()),
        *config.arguments,
    ]


def _on_cpu() -> bool:
    """Tell whether vLLM is its build for CPUs."""
    try:
        importlib.metadata.distribution("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _environment(config: EngineConfig, cpu_threads: int) -> dict[str, str]:
    environment = {**_ENVIRONMENT, "OMP_NUM_THREADS": str(cpu_threads)}
    if Path(config.path).is_absolute():  # a model in a folder needs no hub
        environment["HF_HUB_OFFLINE"] = "1"
    if config.adapter_rank:  # adapters come and go while the engine runs
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if _on_cpu() and _BOUND not in os.environ:
        # On a CPU, vLLM puts the worker of an engine beside its core, and both spin while they wait
        # for each other. Only a worker of its own can bind threads to cores; ours are bound
        # nowhere.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return environment
