"""`rolegate chat`, as a program in a pipe and as a person at a terminal."""

import asyncio
import io
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from router.trace.run import Feedback
from tests.conftest import Ended, Rolegate
from tests.router.clock import ended
from tests.router.deployment import STOP, Deployment, HeldModel, Kept, block
from tests.router.edge.certificates import Authority
from tests.router.edge.wire import whole_server
from tests.scripted_gateway import DEAD_QUESTION, DIRECTOR, QUESTION, environment
from tests.scripted_model import ScriptedModel

CODE = "import sys; from serving.cli.main import main; sys.exit(main())"
AT_TERMINAL = f"import os; os.login_tty(os.dup(0)); {CODE}"
PROMPT = "rolegate> "
CTRL_C = "\x03"
CTRL_D = "\x04"
UP = "\x1b[A"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Certificate authority of the servers."""
    return Authority(tmp_path)


@asynccontextmanager
async def served(deployment: Deployment) -> AsyncIterator[tuple[str, Kept]]:
    """Start a gateway; return its address and store."""
    store = Kept()
    server = whole_server(deployment, store)
    yield f"127.0.0.1:{await server.start('127.0.0.1:0')}", store
    await server.drain(0)


Piped = Callable[..., Ended]
"""Function of lines and options."""


@pytest.fixture
def piped(rolegate: Rolegate, monkeypatch: pytest.MonkeyPatch) -> Piped:
    """Run a chat with questions from a pipe."""

    def run(*lines: str, options: Sequence[object]) -> Ended:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return rolegate("chat", *options)

    return run


class Terminal:
    """A pseudo-terminal with a chat."""

    def __init__(self, screen: int, process: subprocess.Popen[bytes]) -> None:
        self._screen = screen
        self._process = process
        self._unread = ""

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    async def shows(self, text: str, insisting: str = "") -> None:
        """Wait until `text` is shown; type `insisting` repeatedly meanwhile."""
        await asyncio.to_thread(self._until, text, insisting)

    async def status(self) -> int:
        """Wait for the end of the chat, and return its exit status."""
        return await ended(asyncio.to_thread(self._process.wait))

    def _until(self, text: str, insisting: str) -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:  # a clock on the screen goes on for ever
            self.type(insisting)
            while text not in self._unread and select.select([self._screen], [], [], 1)[0]:
                self._unread += os.read(self._screen, 4096).decode(errors="replace")
                if time.monotonic() > until:
                    break
            if text in self._unread:
                self._unread = self._unread.partition(text)[2]
                return
        raise AssertionError(f"{text!r} is not shown, but {self._unread!r}")


@contextmanager
def terminal(*options: str) -> Iterator[Terminal]:
    """Start a chat at a pseudo-terminal, and kill it at the end of the test if it still runs."""
    screen, inside = pty.openpty()
    command = [sys.executable, "-c", AT_TERMINAL, "chat", *options]
    environ = {**environment(), "TERM": "xterm", "COLUMNS": "100"}
    try:
        with subprocess.Popen(command, stdin=inside, env=environ) as process:
            os.close(inside)
            try:
                yield Terminal(screen, process)
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
    finally:
        os.close(screen)


def test_questions_are_read_from_a_pipe(gateway: str) -> None:
    """Answers are on standard output without a prompt, everything else is on standard error.

    The end of the pipe ends the chat.
    """
    run = subprocess.run(
        [sys.executable, "-c", CODE, "chat", "--address", gateway],
        input=f"{QUESTION}\n\n{QUESTION}\n",
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=60,
    )

    assert run.returncode == 0
    assert run.stdout.count("│ in 1943") == 2
    assert PROMPT not in run.stdout + run.stderr
    assert run.stderr.startswith("A question may refer to earlier questions.")


def test_an_error_does_not_end_the_chat(gateway: str, piped: Piped) -> None:
    """The error is shown, and the next question is asked; lines after `exit` are not."""
    run = piped(DEAD_QUESTION, QUESTION, "exit", QUESTION, options=("--address", gateway))

    assert (run.status, run.out.count("│ in 1943")) == (0, 1)
    assert "delegation at http://127.0.0.1:9/v1: connection refused" in run.err


@pytest.mark.parametrize("end", ["/quit", "/exit", ":exit", ":q", "quit", "exit"])
def test_slash_commands_are_not_asked(end: str, gateway: str, piped: Piped) -> None:
    run = piped("/help", QUESTION, "/usage", end, QUESTION, options=("--address", gateway))

    assert (run.status, run.out.count("│ in 1943")) == (0, 1)
    assert run.err.count("/quit") == 2
    assert [line.split()[0] for line in run.out.splitlines() if line.split()[:1] == ["all"]] == [
        "all",
        "all",
    ]


def test_usage_is_that_of_this_chat(gateway: str, piped: Piped) -> None:
    """Two answers cost twice as much as a single one; a previous chat does not count. There is one
    row for each role.
    """
    piped(QUESTION, options=("--address", gateway))
    run = piped(QUESTION, "/new", QUESTION, ":usage", options=("--address", gateway))

    sums = [line.split()[1] for line in run.out.splitlines() if line.split()[:1] == ["all"]]
    assert sums == ["8", "8", "16"]
    words = run.out.rpartition("role")[2].split()
    assert [words.count(role) for role in ("delegation", "execution", "answer")] == [1, 1, 1]


async def test_questions_have_the_index_and_the_style_of_the_chat(piped: Piped) -> None:
    """`/index` names the indexes of the questions that follow; `--length` and `--language` hold for
    all answers.
    """
    answerer = ScriptedModel(["<answer>Mann</answer>"] * 2)
    condenser = ScriptedModel(lambda _prompt: f"<question>{DIRECTOR}</question>")
    delegator = ScriptedModel(lambda prompt: block(DIRECTOR) if len(prompt.messages) == 2 else STOP)
    deployment = Deployment(delegator, answerer=answerer, condenser=condenser)
    options = ("--length", "paragraph", "--language", "German")
    async with served(deployment) as (address, _store):
        lines = [DIRECTOR, "/index contracts mail", DIRECTOR, "/index", DIRECTOR]
        run = await asyncio.to_thread(piped, *lines, options=("--address", address, *options))
    assert "searching contracts mail" in run.err
    assert "contracts" in run.err.partition("searching contracts mail")[2]
    assert "searching all indexes" in run.err
    assert run.out.count("│ Mann") == 2
    for prompt in answerer.prompts:
        assert "German" in prompt.messages[0].content


async def test_feedback_is_for_the_last_answer(piped: Piped) -> None:
    """It is good, bad, or bad with the right answer.

    A question without an answer takes no feedback.
    """
    delegator = ScriptedModel([*[block(DIRECTOR), STOP] * 2, "", ""])
    deployment = Deployment(
        delegator,
        answerer=ScriptedModel(["<answer>Mann</answer>"] * 2),
        condenser=ScriptedModel(lambda _prompt: f"<question>{DIRECTOR}</question>"),
    )
    async with served(deployment) as (address, store):
        lines = [
            ":right",
            DIRECTOR,
            ":right",
            DIRECTOR,
            ":wrong",
            ":wrong Michael  Mann",
            "x" * 5000,
            ":right",
            ":nonsense",
            "/frob now",
        ]
        run = await asyncio.to_thread(piped, *lines, options=("--address", address))

    first, second = (run.id for run in store.runs)
    assert store.given == [
        Feedback(first, accepted=True),
        Feedback(second, accepted=False),
        Feedback(second, accepted=False, right_answer="Michael  Mann"),
    ]
    assert run.err.count("there is no answer to rate yet") == 2
    assert run.err.count("/wrong [RIGHT ANSWER]") == 3
    assert "\n:nonsense is not a command." in run.err
    assert "\n/frob is not a command." in run.err


async def test_ctrl_c_cancels_the_running_question_only() -> None:
    """Its run ends at the gateway, and the chat takes the next question; Ctrl-D ends the chat."""
    model = HeldModel(ScriptedModel(["", block(DIRECTOR), STOP]))
    async with served(Deployment(model)) as (address, store):
        with terminal("--address", address) as person:
            await person.shows(PROMPT)
            person.type("Why?\n")
            await ended(model.called.wait())
            person.type(CTRL_C)
            await person.shows("cancelled")
            await ended(model.cancelled.wait())
            assert (await store.next()).status == "cancelled"
            await person.shows(PROMPT)
            model.let.set()
            person.type(f"{DIRECTOR}\n")
            await person.shows("Michael Mann")
            await person.shows(PROMPT)
            person.type(CTRL_D)
            assert await person.status() == 0


async def test_lines_can_be_edited_and_recalled(gateway: str) -> None:
    """The arrow key recalls the previous line; Ctrl-C clears a line and does not end the chat."""
    with terminal("--address", gateway) as person:
        await person.shows(PROMPT)
        person.type(f"{QUESTION}\n")
        await person.shows("in 1943")
        await person.shows(PROMPT)
        person.type("half a quest")
        await person.shows("half a quest")
        # Python misses a signal that comes while it reads a key
        await person.shows(PROMPT, insisting=CTRL_C)
        person.type(f"{UP}\n")
        await person.shows("in 1943")
        await person.shows(PROMPT)
        person.type("exit\n")
        assert await person.status() == 0


def written(folder: Path, server: str = "") -> Path:
    """Write a config whose models are not served."""
    (folder / "prompt.txt").write_text("Do it.\n")
    roles = "".join(
        f'[roles.{name}]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\nprompt = '
        '"prompt.txt"\nattempts = 1\n'
        for name in ("delegation", "execution", "answer")
    )
    config = folder / "my.toml"
    config.write_text(
        f'[server]\nstore = "sqlite:///runs.db"\n{server}[retrieval]\naddress = '
        f'"127.0.0.1:9"\n{roles}'
    )
    return config


def test_a_chat_without_an_address_has_its_own_gateway(
    tmp_path: Path, piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started once for all questions, and stopped with the chat."""
    monkeypatch.chdir(tmp_path)
    run = piped("Why?", "How?", options=("--config", written(tmp_path)))

    assert run.status == 0
    assert run.err.count("delegation at http://127.0.0.1:9/v1") == 2
    assert (tmp_path / "runs.db").stat().st_size > 0


def test_a_chat_s_own_gateway_needs_no_key(
    tmp_path: Path,
    authority: Authority,
    piped: Piped,
    rolegate: Rolegate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It needs no certificate either, even if the config requires both of other clients."""
    certificate, key = authority.issue("server")
    config = written(tmp_path, f'[server.tls]\ncertificate = "{certificate}"\nkey = "{key}"\n')
    monkeypatch.chdir(tmp_path)
    assert rolegate("keys", "create", "--config", config).status == 0

    run = piped("Why?", options=("--config", config))

    assert run.status == 0
    assert run.err.count("delegation at http://127.0.0.1:9/v1") == 1


def test_a_gateway_that_cannot_start_is_reported_in_one_line(tmp_path: Path, piped: Piped) -> None:
    """The status is 1."""
    run = piped("Why?", options=("--config", tmp_path / "absent.toml"))

    assert run.status == 1
    assert "absent.toml" in run.err.splitlines()[-1]
    assert "Traceback" not in run.err
