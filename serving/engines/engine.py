"""Run a vLLM engine (an OpenAI-compatible server of one model) as a child process."""

import importlib.metadata
import importlib.util
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from router.background import background_tasks
from router.errors import BadConfig
from serving.config.config import EngineConfig
from serving.engines.loading import MAX_LOADED
from serving.engines.process import OnChange, ServerProcess, Watch, keep_running

Log = Callable[[str], None]
"""Function that prints or logs a line of text about the progress."""

_CPUINFO = Path("/proc/cpuinfo")
_BF16 = {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"}
"""CPU features (on x86 or ARM) whose presence means that the CPU has bf16 instructions."""
_ADAPTER_SLOTS = MAX_LOADED + 1
"""Number of slots for LoRA adapters in an engine. It is one more than the number of loaded
adapters, because the last slot must stay empty. On a CPU, vLLM 0.32 uses slot index -1 for a call
without an adapter, and so would apply an adapter in the last slot.
"""
_LOGS = Path("~/.cache/rolegate/logs")
_THREADS_BIND = "VLLM_CPU_OMP_THREADS_BIND"
_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "PYTHONSAFEPATH": "1",  # do not import modules from the working directory
    "VLLM_CPU_KVCACHE_SPACE": "1",
    _THREADS_BIND: "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment variables of an engine, unless the gateway's environment sets them."""


def cores() -> int:
    """Return the number of cores on which this process may run. Limits on CPU time, such as a
    container's CPU quota, are ignored.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def computes_in_bf16(described: Path = _CPUINFO) -> bool:
    """Return True if the CPU has bf16 instructions, or if this is unknown because the file
    `described` cannot be read or lists no CPU features. `described`: file in the format of
    /proc/cpuinfo.
    """
    try:
        text = described.read_text()
    except OSError:
        return True
    features = re.search(r"^(?:flags|Features)\s*:(.*)", text, re.M)
    return features is None or not _BF16.isdisjoint(features[1].split())


def precision(arguments: Sequence[str], *, on_cpu: bool, bf16: bool) -> tuple[str, ...]:
    """Return the vLLM options for the precision: `--dtype float32` on a CPU without bf16
    instructions, unless `arguments` contain `--dtype`; otherwise no options.

    A CPU without bf16 instructions emulates bf16, which takes 1.5 times as long as fp32.
    """
    is_chosen = any(argument.partition("=")[0] == "--dtype" for argument in arguments)
    return () if is_chosen or bf16 or not on_cpu else ("--dtype", "float32")


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
    """Run a vLLM engine while the context is open, and yield the engine's base URL, `http://…/v1`.
    The engine serves its model under each of the names `served`.

    If the engine dies or hangs, `on_change` is called, and the engine is restarted at the same
    address, without the adapters that were loaded. If only a computation hangs, the engine is not
    restarted, because vLLM still answers health checks; model calls then time out.

    `cpu_threads`: number of threads of an engine on a CPU. Waiting threads keep a core busy. So if
    all engines together have more threads than there are cores, every engine gets several times
    slower. `logs`: folder for the file with vLLM's output. The file is deleted on exit, unless the
    engine has failed. Raises `BadConfig` if vLLM is not installed or does not start.
    """
    if importlib.util.find_spec("vllm") is None:
        raise BadConfig(
            f"engines.{name}: vLLM is not installed; install rolegate[cpu] or rolegate[gpu], or "
            "use base_url."
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
    has_failed = True

    def changed(reason: str | None) -> None:
        nonlocal has_failed
        has_failed = True
        on_change(reason)

    try:
        log(f"vLLM engine {name}: loading {Path(config.path).name}")
        await process.start()
        has_failed = False
        log(f"vLLM engine {name}: ready at http://127.0.0.1:{port}/v1")
        watching = keep_running(process, changed, Watch(within_s=config.health_timeout_s))
        async with background_tasks(watching):
            yield f"http://127.0.0.1:{port}/v1"
    finally:
        await process.stop()
        if not has_failed:
            output.unlink(missing_ok=True)


def _command(config: EngineConfig, served: list[str], port: int) -> list[str]:
    options = f"--host 127.0.0.1 --port {port} --enforce-eager --enable-prompt-tokens-details"
    if config.adapter_rank:
        options += (
            f" --enable-lora --max-lora-rank {config.adapter_rank} --max-loras {_ADAPTER_SLOTS}"
        )
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", config.path, "--served-model-name", *served),
        *options.split(),
        *precision(config.arguments, on_cpu=_on_cpu(), bf16=computes_in_bf16()),
        *config.arguments,
    ]


def _on_cpu() -> bool:
    """Return True if the CPU build of vLLM is installed."""
    try:
        importlib.metadata.distribution("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _environment(config: EngineConfig, cpu_threads: int) -> dict[str, str]:
    environment = {**_ENVIRONMENT, "OMP_NUM_THREADS": str(cpu_threads)}
    if Path(config.path).is_absolute():  # a local model needs no access to the Hugging Face hub
        environment["HF_HUB_OFFLINE"] = "1"
    if config.adapter_rank:
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if _on_cpu() and _THREADS_BIND not in os.environ:
        # On a CPU, vLLM runs an engine's worker in a second process, and each process keeps a core
        # busy while it waits for the other process. The second process is only needed to bind
        # threads to cores.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return environment
