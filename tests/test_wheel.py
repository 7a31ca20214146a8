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
import tomlkit

from tests.openai_server import MODEL, OpenAIServer, says, serving

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


ONLY = """
import importlib.abc
import sys

ALLOWED = {*sys.stdlib_module_names, "rolegate", "grpc", "google", "typing_extensions"}

class Only(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] not in ALLOWED:
            raise ImportError(f"{name} is no dependency of the client")

sys.meta_path.insert(0, Only())
from rolegate.client import Client, GatewayError

try:
    with Client("127.0.0.1:1") as client:
        client.ask("Who?", timeout_s=5)
except GatewayError as error:
    print(error.code.name)
"""
"""A program that asks a gateway that is not there, with the client's dependencies alone."""
READS = """
from alembic.script import ScriptDirectory
from router.store.migration import THIS

print(ScriptDirectory(str(THIS.scripts)).get_current_head(), THIS.revision)
"""
"""A program that reads the revisions of the installed gateway."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository without ignored files."""
    copy = tmp_path_factory.mktemp("source")
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


def install(source: Path, target: Path) -> Path:
    """Build the source distribution of a folder, and from that the wheel. Unpack the wheel below
    `target`, and return the folder with it.
    """
    build = [sys.executable, "-m", "build", "--outdir", str(target), str(source)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    assert len([*target.glob("*.tar.gz")]) == 1
    (wheel,) = target.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    unpacked = target / "unpacked"
    subprocess.run([*pip, "install", "--no-deps", "--target", unpacked, wheel], check=True)
    return unpacked


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel of the gateway."""
    return install(source, tmp_path_factory.mktemp("gateway"))


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


@pytest.mark.slow
async def test_the_client_s_wheel_needs_no_gateway(source: Path, tmp_path: Path) -> None:
    """It has the version of the gateway, and works with gRPC and protobuf alone."""
    installed = install(source / "protos", tmp_path)
    versions = [
        tomlkit.parse((source / folder / "pyproject.toml").read_text())["project"]["version"]
        for folder in (".", "protos")
    ]
    assert versions[0] == versions[1]
    (tmp_path / "asks.py").write_text(ONLY)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    assert await _run([sys.executable, "asks.py"], tmp_path, environment) == "UNAVAILABLE\n"


@pytest.mark.slow
async def test_the_wheel_has_the_scripts_of_all_revisions(installed: Path, tmp_path: Path) -> None:
    """Alembic reads them as files, and they lead to the revision of the release."""
    scripts = "router/store/migrations"
    expected = {path.relative_to(ROOT) for path in (ROOT / scripts).rglob("*.py")}
    found = {path.relative_to(installed) for path in (installed / scripts).rglob("*.py")}
    assert found == expected
    (tmp_path / "reads.py").write_text(READS)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    head, revision = (await _run([sys.executable, "reads.py"], tmp_path, environment)).split()
    assert head == revision


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
