"""What a processor can do, by its description."""

from pathlib import Path

import pytest

from serving.processor import computes_in_bf16


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
def test_bf16(tmp_path: Path, described: str, can: bool) -> None:
    """Is a flag, of x86 or of ARM; what is not described is taken for granted."""
    path = tmp_path / "cpuinfo"
    path.write_text(described)
    assert computes_in_bf16(path) == can
    assert computes_in_bf16(tmp_path / "none")
