"""The wheel works outside the repository, in any working directory."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from router.testing.openai_server import MODEL, OpenAIServer, says, serving

ROOT = Path(__file__).parent.parent
CONFIG = """
[roles.delegation]
base_url = "{url}"
model = "{model}"
prompt = "prompt.txt"

[roles.execution]
base_url = "{url}"
model = "{model}"
prompt = "prompt.txt"

[roles.answer]
base_url = "{url}"
model = "{model}"
prompt = "prompt.txt"

[retrieval]
index = "index"
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel, built from a copy without ignored files."""
    source, wheels, target = (
        tmp_path_factory.mktemp(name) for name in ("source", "wheels", "target")
    )
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, source], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True)
    return target


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[OpenAIServer]:
    async with serving() as server:
        yield server


@pytest.mark.slow
async def test_the_wheel_answers_among_foreign_modules(
    installed: Path, upstream: OpenAIServer, tmp_path: Path
) -> None:
    """An installed wheel indexes and answers in a working directory with foreign `router/` and
    `benchmarks/` folders.
    """
    for name in ("router", "benchmarks", "serving"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('a foreign module')")
    (tmp_path / "prompt.txt").write_text("Do your part.")
    (tmp_path / "corpus.jsonl").write_text(
        '{"id": "1", "title": "Ilmen", "text": "Ilmen is the capital of Arvo."}\n'
    )
    (tmp_path / "config.toml").write_text(CONFIG.format(url=upstream.base_url, model=MODEL))
    upstream.plays(
        says("<search>What is the capital of Arvo?</search>"),
        says("<search>capital of Arvo</search>"),
        says("<answer>Ilmen</answer><evidence>Ilmen is the capital of Arvo.</evidence>"),
        says("<stop/>Enough evidence<stop>"),
        says("<answer>Ilmen</answer>"),
    )
    command = [sys.executable, str(installed / "bin" / "rolegate")]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    index = [*command, "index", "build", "corpus.jsonl", "--out", "index"]
    await _run(index, tmp_path, environment)
    answered = await _run(
        [*command, "ask", "--json", "--config", "config.toml", "Which city?"], tmp_path, environment
    )
    answer = json.loads(answered)
    assert answer["answer"] == "Ilmen"
    assert answer["results"][0]["evidence"][0]["citations"][0]["title"] == "Ilmen"


async def _run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()
