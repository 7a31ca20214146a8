"""What this machine's processor can do."""

import os
from collections.abc import Sequence
from pathlib import Path

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
