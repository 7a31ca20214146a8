"""An engine on a CPU, as it runs."""

import os

import psutil


async def test_no_process_computes_beside_its_core(engine_url: str) -> None:
    """Two of them would spin while they wait for each other, and take the cores from other engines."""
    names = [child.name() for child in psutil.Process(os.getpid()).children(recursive=True)]
    assert any(name.startswith("VLLM::Eng") for name in names)
    assert not [name for name in names if name.startswith("VLLM::Wor")]
