import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from serving.cli.main import main
from serving.config.file import load_config, preset
from tests.scripted_gateway import environment

PRESETS = ["hosted", "one-gpu", "local"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with documents, and remove keys from the environment."""
    (tmp_path / "documents").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def comments(path: Path) -> list[str]:
    """Return every comment of a file."""
    return re.findall(r"#[^\n]*", path.read_text())


@pytest.mark.parametrize("name", PRESETS)
def test_the_defaults_are_the_preset(name: str, tmp_path: Path) -> None:
    """The file has all its comments; only the documents are those of this folder."""
    assert main(["init", "--preset", name, "--yes"]) == 0

    written = tmp_path / "rolegate.toml"
    shipped = preset(name)
    assert comments(written) == comments(shipped)
    assert (
        written.read_text().replace('documents = ["documents"]', "documents = []")
        == shipped.read_text()
    )
    assert load_config(written).retrieval.documents == (str(tmp_path / "documents"),)


def test_without_a_terminal_the_defaults_are_taken(tmp_path: Path) -> None:
    """The output has the next steps: the package to install, the key to export, and the next
    command.
    """
    code = "import sys; from serving.cli.main import main; sys.exit(main(['init']))"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(
        command,
        check=False,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert [line.strip() for line in ended.stdout.splitlines()] == [
        "rolegate.toml is written. Next:",
        "export OPENAI_API_KEY=…",
        "rolegate index build",
        "rolegate check --live",
        "rolegate serve",
        'rolegate ask "…" --address 127.0.0.1:50551  # once it prints serve.ready',
    ]


def test_every_question_has_an_option(tmp_path: Path) -> None:
    """Models, address, key and embedder are at their places; no prefix or key of another model is
    left.
    """
    (tmp_path / "sub").mkdir()
    (tmp_path / "notes.md").write_text("A note.")
    answers = [
        "--backbone",
        "big",
        "--executor",
        "small",
        "--answerer",
        "fixed",
        "--base-url",
        "https://models.test/v1",
    ]
    embedder = [
        "--embedder",
        "bge",
        "--embedder-url",
        "http://127.0.0.1:9/v1",
        "--embedder-dimension",
        "384",
    ]
    others = ["--key-env", "MY_KEY", "--documents", "documents", "notes.md", "--out", "sub/my.toml"]

    assert main(["init", "--preset", "hosted", "--yes", *answers, *embedder, *others]) == 0

    config = load_config(tmp_path / "sub" / "my.toml")
    roles = (config.roles.delegation, config.roles.execution, config.roles.answer)
    assert [role.model for role in roles] == ["big", "small", "fixed"]
    assert {(role.base_url, role.api_key_env) for role in roles} == {
        ("https://models.test/v1", "MY_KEY")
    }
    embedder_config = config.retrieval.embedder
    assert (embedder_config.model, embedder_config.base_url, embedder_config.dimension) == (
        "bge",
        "http://127.0.0.1:9/v1",
        384,
    )
    assert embedder_config.api_key_env is None
    assert config.retrieval.documents == (str(tmp_path / "documents"), str(tmp_path / "notes.md"))


def test_an_engine_has_the_model_of_its_role(tmp_path: Path) -> None:
    """There is no engine for an embedder in this process."""
    assert (
        main(
            [
                "init",
                "--preset",
                "one-gpu",
                "--yes",
                "--executor",
                "Qwen/Qwen3-4B",
                "--embedder",
                "minilm",
            ]
        )
        == 0
    )

    config = load_config(tmp_path / "rolegate.toml")
    assert {name: engine.path for name, engine in config.engines.items()} == {
        "executor": "Qwen/Qwen3-4B"
    }
    assert config.roles.execution.model == "Qwen/Qwen3-4B"
    assert (config.retrieval.embedder.in_process, config.retrieval.embedder.query_prefix) == (
        True,
        "",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--documents", "nowhere"], "retrieval.documents: there is no file or folder"),
        (
            ["--embedder", "bge"],
            "retrieval.embedder.dimension: missing; embedders with engine or base_url need it.",
        ),
        (
            ["--key-env", "sk-abc"],
            "must be the name of an environment variable in capitals, such as",
        ),
        (
            ["--key-env", "gsk_abc123"],
            "must be the name of an environment variable in capitals, such as",
        ),
        (
            ["--base-url", "localhost:9"],
            "rolegate: rolegate.toml is not written: --base-url: must be http:// or "
            "https:// and a host, like http://127.0.0.1:8000/v1.\n",
        ),
    ],
)
def test_impossible_answers_are_refused_and_nothing_is_written(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that was given instead of its name is not repeated."""
    assert main(["init", "--yes", *options]) == 1

    shown = capsys.readouterr().err
    assert message in shown
    assert "abc" not in shown
    assert not (tmp_path / "rolegate.toml").exists()


def test_an_existing_file_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--force` replaces it; if that fails, the file is unchanged."""
    mine = tmp_path / "rolegate.toml"
    mine.write_text("mine")

    assert main(["init", "--yes"]) == 1
    assert capsys.readouterr().err.startswith("rolegate: --out rolegate.toml: exists already; ")
    assert main(["init", "--yes", "--force", "--documents", "nowhere"]) == 1
    assert mine.read_text() == "mine"
    assert main(["init", "--yes", "--force"]) == 0
    assert load_config(mine).roles.answer.model


def test_each_question_is_asked_with_its_default(tmp_path: Path) -> None:
    """An empty line takes the default; after an unknown preset, the question is repeated."""
    answers = ["nowhere", "local", "", "big", "", "", "bge", "", "384", "documents"]
    code = "import sys; from serving.cli.main import main; sys.exit(main(['init']))"
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
    ) as process:
        os.close(theirs)
        os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
        shown = ""
        while select.select([ours], [], [], 60)[0]:
            try:
                shown += os.read(ours, 4096).decode()
            except OSError:  # Linux reports that the other side is closed
                break
    os.close(ours)

    assert process.returncode == 0, shown
    assert "searches and reads; a small, fast model is enough" in shown
    assert "(http://127.0.0.1:11434/v1)" in shown
    config = load_config(tmp_path / "rolegate.toml")
    assert (config.roles.delegation.model, config.roles.execution.model) == ("big", "big")
    assert (config.retrieval.embedder.model, config.retrieval.embedder.dimension) == ("bge", 384)
    assert (
        config.retrieval.embedder.base_url
        == config.roles.answer.base_url
        == "http://127.0.0.1:11434/v1"
    )


def test_commands_in_the_folder_use_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This holds without `--config`; standard error has the file's name."""
    assert main(["init", "--yes"]) == 0
    assert main(["check"]) == 1
    assert main(["check", "--allow-missing"]) == 0

    shown = capsys.readouterr()
    assert shown.err == f"rolegate: the config is {tmp_path}/rolegate.toml\n" * 2
    assert "rolegate.toml: not ready yet" in shown.out


def test_one_model_is_for_all_roles_if_the_preset_has_one(tmp_path: Path) -> None:
    """Naming the backbone of `local` sets the others, too; a role that is named separately keeps
    its model.
    """
    assert (
        main(["init", "--yes", "--preset", "local", "--backbone", "big", "--executor", "small"])
        == 0
    )

    roles = load_config(tmp_path / "rolegate.toml").roles
    assert (roles.delegation.model, roles.execution.model, roles.answer.model) == (
        "big",
        "small",
        "big",
    )
