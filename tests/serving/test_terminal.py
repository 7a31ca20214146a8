"""Control characters in texts from outside never reach a terminal, in any command."""

import asyncio
import io
import json
import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rolegate.client.text import visible

from router.errors import UpstreamUnavailable
from router.models import Prompt
from router.protocol import Passage
from serving.cli.main import main
from serving.logs import plain_tracebacks
from serving.terminal import visible_output
from tests.router.deployment import STOP, Deployment, block, report
from tests.router.edge.administered import stored_key
from tests.router.edge.wire import whole_server
from tests.router.retriever import FixedRetriever
from tests.scripted_model import Answer, ScriptedModel
from tests.store_config import write_config

HOSTILE = "\x1b]0;owned\x07 \x1b[2J \x9b31m \u202e \u2066 \x7f [red]"
SHOWN = r"\u001b]0;owned\u0007 \u001b[2J \u009b31m \u202e \u2066 \u007f [red]"
QUESTION = f"Who {HOSTILE}?"
DEAD_QUESTION = f"Who is dead {HOSTILE}?"
SENTENCE = f"Mann {HOSTILE} made it."
PASSAGE = Passage("p1", f"Heat {HOSTILE}", SENTENCE, 0.9)


def obeyed(text: str) -> set[str]:
    """Return the characters that a terminal would interpret."""
    turning = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return {
        character
        for character in set(text) - {"\t", "\n"}
        if unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs")
        or unicodedata.bidirectional(character) in turning
    }


@asynccontextmanager
async def gateway() -> AsyncIterator[str]:
    """Address of a gateway whose models, passages and errors are hostile."""

    def delegates(prompt: Prompt) -> Answer:
        if "dead" in prompt.messages[1].content:
            return UpstreamUnavailable(f"refused {HOSTILE}", endpoint="http://127.0.0.1:9/v1")
        return block(QUESTION) if len(prompt.messages) == 2 else STOP

    def executes(prompt: Prompt) -> Answer:
        return (
            f"<search>{QUESTION}</search>"
            if len(prompt.messages) == 2
            else report(HOSTILE, SENTENCE)
        )

    deployment = Deployment(
        ScriptedModel(delegates, f"backbone {HOSTILE}"),
        ScriptedModel(executes, "small"),
        ScriptedModel(lambda _prompt: f"<answer>{HOSTILE}</answer>", "fixed"),
        FixedRetriever({QUESTION: [PASSAGE]}),
        condenser=ScriptedModel(
            lambda prompt: f"<question>{prompt.messages[1].content.partition('<question>')[2]}"
        ),
    )
    server = whole_server(deployment)
    yield f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    await server.drain(0)


async def test_every_command_escapes_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are escaped in questions, sub-queries, answers, titles, quotes, models, comments and
    errors.
    """

    async def printed(*arguments: str, status: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert await asyncio.to_thread(main, [*arguments, "--address", address]) == status
        out, err = capsys.readouterr()
        assert obeyed(out + err) == set(), arguments
        return out, err

    async with gateway() as address:
        monkeypatch.setenv("COLUMNS", "400")
        out, err = await printed("ask", QUESTION, "--stream")
        assert out.count(SHOWN) > 4
        assert f"Who {SHOWN}?" in err
        as_json, _ = await printed("ask", QUESTION, "--json")
        answer = json.loads(as_json)
        assert answer["answer"] == HOSTILE
        run_id = answer["run_id"]
        await printed("runs", "feedback", run_id, "--comment", HOSTILE, "--right-answer", HOSTILE)
        assert f"Who {SHOWN}?" in (await printed("runs", "list"))[0]
        shown, _ = await printed("runs", "show", run_id)
        for text in (
            f"request: Who {SHOWN}?",
            f"output: {SHOWN}",
            f"backbone {SHOWN}",
            f", {SHOWN}",
        ):
            assert text in shown
        assert json.loads((await printed("runs", "show", run_id, "--json"))[0])["output"] == HOSTILE
        assert (
            json.loads((await printed("runs", "show", run_id, "--trace"))[0])["request"] == QUESTION
        )
        assert SHOWN in (await printed("runs", "watch", run_id))[0]
        assert f"backbone {SHOWN}" in (await printed("usage"))[0]
        await printed("usage", "--csv")
        assert f"refused {SHOWN}" in (await printed("ask", DEAD_QUESTION, status=1))[1]
        assert SHOWN in (await printed("runs", "list", "--status", "failed"))[0]
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{QUESTION}\n{DEAD_QUESTION}\n"))
        out, err = await printed("chat", "--stream")
        assert SHOWN in out
        assert f"refused {SHOWN}" in err


def test_names_from_the_store_and_the_config_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are labels of keys, and names of files and models."""
    folder = tmp_path / HOSTILE
    folder.mkdir()
    write_config(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "400")
    (folder / "prompt.txt").write_text("Answer.", "utf-8")
    assert main(["keys", "create", "--label", HOSTILE]) == 1
    asyncio.run(stored_key("sqlite:///rolegate.db", label=HOSTILE))  # as earlier releases did
    assert main(["keys", "list"]) == 0
    assert main(["keys", "list", "--json"]) == 0
    assert main(["store", "check"]) == 0
    config = folder / "rolegate.toml"
    config.write_text(
        config.read_text("utf-8").replace('"any"', json.dumps(f"any {HOSTILE}")), "utf-8"
    )
    main(["check"])
    main(["check", "--config", f"{folder}/missing {HOSTILE}.toml"])
    out, err = capsys.readouterr()
    assert obeyed(out + err) == set()
    assert out.count(SHOWN) >= 2
    assert SHOWN in err


def test_styles_of_rich_are_kept() -> None:
    """They are also kept while `print` and progress are active; the text is shown."""
    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.stdout", stream)
        with visible_output():
            console = Console(
                force_terminal=True, color_system="standard", highlight=False, width=200
            )
            with console.status("asking"):
                console.print(f"a {HOSTILE}", style="red", markup=False)
                print(f"b {HOSTILE}")
    written = stream.getvalue()
    assert f"\x1b[31ma {SHOWN}\x1b[0m" in written
    assert f"b {SHOWN}\n" in written
    assert obeyed(written) <= {"\x1b", "\r"}


@pytest.mark.parametrize("colours", [True, False])
def test_fields_and_tracebacks_of_the_log_are_escaped(
    colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds with and without colours."""
    log = io.StringIO()
    monkeypatch.setattr(log, "isatty", lambda: colours)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout", log)
    plain_tracebacks()
    with visible_output():
        structlog.get_logger("edge").warning(
            "edge.refused", error=HOSTILE, word="\x1b[2J", both=[HOSTILE]
        )
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            structlog.get_logger("edge").exception("edge.failed")
    written = log.getvalue()
    assert f"ValueError: {SHOWN}" in written
    assert ("\x1b[31m" in written) is colours
    for sequence in ("\x1b]0", "\x1b[2J"):
        assert sequence not in written
    assert obeyed(written) <= ({"\x1b"} if colours else set())


@given(st.text())
def test_visible_text_has_no_control_characters(text: str) -> None:
    """JSON keeps its meaning."""
    assert obeyed(visible(text)) == set()
    assert json.loads(visible(json.dumps(text, ensure_ascii=False))) == text
    if not obeyed(text):
        assert visible(text) == text
