"""Properties of a processor, from its description."""

import os
from pathlib import Path

import pytest

from serving.engines.engine import computes_in_bf16, cores, precision


@pytest.mark.parametrize(
    ("described", "can"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_bf16\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512bw\nvmx flags\t: bf16\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd\n", False),
        ("processor\t: 0\n", True),
    ],
)
def test_bf16_is_recognised_by_processor_flags(tmp_path: Path, described: str, can: bool) -> None:
    """It is a feature flag of x86 or ARM; an unknown processor is assumed to have it."""
    path = tmp_path / "cpuinfo"
    path.write_text(described)
    assert computes_in_bf16(path) == can
    assert computes_in_bf16(tmp_path / "none")


def test_precision_is_fp32_without_bf16() -> None:
    """The arguments may choose another type."""
    assert precision(("--max-num-seqs", "8"), on_cpu=True, bf16=False) == ("--dtype", "float32")
    assert precision((), on_cpu=True, bf16=True) == ()
    assert precision((), on_cpu=False, bf16=False) == ()
    assert precision(("--dtype", "bfloat16"), on_cpu=True, bf16=False) == ()
    assert precision(("--dtype=bfloat16",), on_cpu=True, bf16=False) == ()


def test_cores_are_those_of_the_process() -> None:
    """More threads than these cores would block each other."""
    if not hasattr(os, "sched_setaffinity") or len(bound := os.sched_getaffinity(0)) < 2:
        pytest.skip("there is nothing to choose from on this system, or on one core")
    try:
        os.sched_setaffinity(0, {min(bound)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, bound)
