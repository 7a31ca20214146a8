"""From an empty folder to answers about the user's documents, by the commands of the guide."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from rolegate.client import Client

from serving.config.config import EmbedderConfig
from tests import embedding
from tests.conftest import Rolegate
from tests.scripted_gateway import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'protos'}", "COLUMNS": "200"}
ROLEGATE = (sys.executable, "-c", "import sys; from serving.cli.main import main; sys.exit(main())")
DOCUMENTS = {
    "handbook.md": (
        "# Handbook\n\n## Leave\n\nEvery employee has 27 days of leave a year.\n\n## Travel\n"
        "\nBy train.\n"
    ),
    "site/lamp.html": (
        "<title>Lamp</title><nav>Home</nav><main><h1>Lamp</h1><p>It draws eleven watts &amp; "
        "hums.</p>"
    ),
    "notes.txt": "The boiler was serviced in March. Its pressure should be 1.5 bar.\n",
    "rows.jsonl": (
        '{"id": "r1", "title": "Gate", "text": "The gate code is changed on the first Monday."}\n'
    ),
    "broken.pdf": "%PDF-1.4 this is not one",
}


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """Base URL of a model that reads by rules."""
    command = [sys.executable, "-m", "tests.reading_model"]
    with subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path, model: str, rolegate: Rolegate, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with documents and the config that `init` wrote."""
    for name, content in DOCUMENTS.items():
        path = tmp_path / "documents" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    names = [
        option
        for role in ("backbone", "executor", "answerer")
        for option in (f"--{role}", "reading-model")
    ]
    init = (
        "init",
        "--preset",
        "local",
        "--base-url",
        model,
        *names,
        "--documents",
        "documents",
        "--yes",
    )
    assert rolegate(*init).status == 0
    return tmp_path


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """Run `rolegate serve` on free ports; yield the gRPC address and the OpenAI-compatible base
    URL.
    """
    command = [*ROLEGATE, "serve", "--address", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        log = ""
        try:
            while "serve.ready" not in log and (line := process.stdout.readline()):
                log += re.sub(r"\x1b\[\d*m", "", line)
            address = re.search(r"serve\.ready\s+address=(\S+)", log)
            door = re.search(r"http://127\.0\.0\.1:\d+/v1", log)
            assert address and door, log
            yield address[1], door[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()
    assert process.returncode == 0


@pytest.mark.engines
def test_documents_are_indexed_checked_and_answered(folder: Path, rolegate: Rolegate) -> None:
    """The index names the files that it skipped, and the check is good.

    Answers cite document and sentence. A changed document is used without a restart, and a question
    without evidence is answered by saying so.
    """
    built = json.loads(rolegate("index", "build", "--json").out)
    assert (built["documents"], built["passages"]) == (4, 4)
    (skipped,) = built["skipped"]
    assert skipped["name"] == "documents/broken.pdf"

    checked = json.loads(rolegate("check", "--live", "--json").out)
    assert checked["works"]

    with serving(folder) as (address, door), Client(address) as client:
        answer = client.ask("How many days of leave has every employee?")
        assert answer.answer == "Every employee has 27 days of leave a year."
        (citation,) = answer.citations
        assert (citation.document, citation.quote) == ("documents/handbook.md", answer.answer)
        assert citation.title == "Handbook › Leave"

        (folder / "documents" / "handbook.md").write_text(
            "# Handbook\n\nEvery employee has 30 days of leave a year.\n"
        )
        rebuilt = json.loads(rolegate("index", "build", "--json").out)
        assert (rebuilt["documents_read"], rebuilt["passages_embedded"]) == (1, 1)
        deadline = time.monotonic() + 30
        while "30" not in answer.answer and time.monotonic() < deadline:
            answer = client.ask("How many days of leave has every employee?")
        assert answer.answer == "Every employee has 30 days of leave a year."

        response = openai.OpenAI(base_url=door, api_key="none").chat.completions.create(
            model="rolegate",
            messages=[{"role": "user", "content": "How many watts does the lamp draw?"}],
        )
        content = response.choices[0].message.content or ""
        assert content.startswith("It draws eleven watts & hums.\n\nSources:\n[1] ")
        assert "(documents/site/lamp.html)" in content

    status, shown, _ = rolegate("ask", "What should the pressure of the boiler be?")
    assert status == 0
    assert "Its pressure should be 1.5 bar." in shown
    assert "notes" in shown


def test_a_wrong_address_and_model_are_reported_before_the_first_question(
    folder: Path, model: str, word_embedder: EmbedderConfig, rolegate: Rolegate
) -> None:
    """`check --live` fails and says for each what to do."""
    config = (folder / "rolegate.toml").read_text() + embedding.keys(word_embedder)
    wrong = folder / "wrong.toml"
    wrong.write_text(config.replace('model = "reading-model"', 'model = "no-such-model"', 1))
    status, output, _ = rolegate("check", "--live", "--config", "wrong.toml")
    assert status == 1
    assert "no-such-model" in output
    assert "reading-model" in output

    wrong.write_text(config.replace(model, model.rpartition("/")[0], 1))
    status, output, _ = rolegate("check", "--live", "--config", "wrong.toml")
    assert (status, "/v1" in output) == (1, True)
