"""vLLM as a child process on a CPU, and failures of its start."""

import os
from pathlib import Path

import psutil
import pytest

from router.errors import BadConfig
from serving.config.config import EngineConfig
from serving.engines.engine import engine


async def test_engines_use_one_core_each(engine_url: str) -> None:
    """Two processes on a core would spin while they wait for each other, and take the cores from
    other engines.
    """
    names = [child.name() for child in psutil.Process(os.getpid()).children(recursive=True)]
    assert any(name.startswith("VLLM::Eng") for name in names)
    assert not [name for name in names if name.startswith("VLLM::Wor")]


@pytest.mark.engines
async def test_a_model_that_vllm_refuses_names_engine_and_log(tmp_path: Path) -> None:
    """A folder with a config of an unknown architecture ends the start; the error has the engine's
    name and the end of its log.
    """
    (tmp_path / "config.json").write_text(
        '{"model_type": "none", "architectures": ["NoSuchModel"]}'
    )
    logs = tmp_path / "logs"
    lines = list[str]()
    with pytest.raises(
        BadConfig, match=r"engines\.small: vLLM ended with code 1; its log .*small-\d+\.log ends"
    ):
        async with engine(
            "small", EngineConfig(path=str(tmp_path)), ["small"], lines.append, logs=logs
        ):
            pytest.fail("it cannot be ready")
    assert lines == [f"vLLM engine small: loading {tmp_path.name}"]
    (log,) = logs.iterdir()
    assert log.stat().st_size > 0
