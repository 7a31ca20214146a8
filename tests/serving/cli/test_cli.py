import io
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import grpc
import pytest
from rolegate.v1.retrieval_service_pb2 import SearchRequest, SearchResponse
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub

from serving.cli.main import main
from serving.config.config import EmbedderConfig
from serving.dependencies import missing_extra
from tests import embedding, scripted_gateway
from tests.scripted_gateway import BORN, DEAD_QUESTION, DIRECTOR, QUESTION

ROWS = [
    {
        "id": "cat",
        "title": "Cat",
        "text": "The cat is a small carnivorous mammal that people keep to catch mice.",
    },
    {
        "id": "bee",
        "title": "Honey bee",
        "text": "Honey bees live in colonies and turn nectar into honey.",
    },
    {
        "id": "mars",
        "title": "Mars",
        "text": "Mars is the fourth planet from the Sun and looks red.",
    },
]
CONFIG = """\
[server]
store = "sqlite:///runs.db"
[retrieval]
{retrieval}
"""
ROLE = '[roles.{name}]\nbase_url = "{url}"\nmodel = "m"\nprompt = "prompt.txt"\nattempts = 1\n'


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three passages."""
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def config_file(folder: Path, base_url: str, retrieval: str) -> Path:
    """A config whose three roles use `base_url`."""
    (folder / "prompt.txt").write_text("Do it.\n")
    path = folder / "my.toml"
    roles = "".join(
        ROLE.format(name=name, url=base_url) for name in ("delegation", "execution", "answer")
    )
    path.write_text(CONFIG.format(retrieval=retrieval) + roles)
    return path


def ready(log: Iterable[str]) -> str:
    """Read a log until its service is ready, and return the service's address."""
    output = ""
    for line in log:
        output += line
        if match := re.search(r"serve\.ready +address='?([^']+?)'?$", line.strip()):
            return match[1]
    raise AssertionError(output)


class Service:
    """A `rolegate` command that runs until stopped."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self._output = process.stdout
        self.seen = ""

    def ready(self) -> str:
        """Read the log until the command is ready, and return its address."""
        return ready(self._lines())

    def _lines(self) -> Iterator[str]:
        for line in self._output:
            self.seen += line
            yield line

    def rest(self) -> str:
        """Return the rest of the log after the command has ended."""
        self.seen += self._output.read()
        self.process.wait()
        return self.seen


@contextmanager
def service(*arguments: str, cwd: Path) -> Iterator[Service]:
    """Start a command, and kill it at the end of the test if it still runs."""
    code = "import sys; from serving.cli.main import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env=scripted_gateway.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Service(process)
        finally:
            process.kill()


def undescribed(help_text: str) -> list[str]:
    """List the options and arguments that a help text does not explain."""
    lines = help_text.splitlines()
    unexplained = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        entry = re.match(r"^( {2,4})(-{1,2}\w\S*|[a-z-]+|[A-Z]+)(?=\s|$)", line)
        if entry and not re.search(r"\S {2,}\S", line) and not after.startswith(f"{entry[1]}  "):
            unexplained.append(entry[2])
    return unexplained


def helped(command: str) -> str:
    """Return the help text of a command."""
    shown = io.StringIO()
    with redirect_stdout(shown), pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    return shown.getvalue()


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"rolegate \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_help_explains_every_command_and_option() -> None:
    """The help of every command states its purpose in a sentence and explains each option.

    Each command is listed in the help of its parent.
    """
    left = ["", "usage reconcile", "sft mini-world", "sft mini-model"]
    explained = set[str]()
    while left:
        command = left.pop()
        shown = helped(command)
        explained.add(command)
        assert shown.startswith(f"usage: rolegate {command}".rstrip())
        assert len(shown.split("\n\n")[1].split()) >= 5, command
        assert undescribed(shown.split("\n\n", 2)[2]) == [], command
        section = re.search(
            r"^positional arguments:\n(.*?)(?:\n\n|\Z)", shown, re.DOTALL | re.MULTILINE
        )
        below = (
            re.findall(r"^    ([a-z][a-z-]*)(?: |$)", section[1], re.MULTILINE) if section else []
        )
        if command not in {
            "sft",
            "bench",
        }:  # all of which would load the packages for training and benchmarks
            left += [f"{command} {name}".strip() for name in below]
    assert {
        "chat",
        "serve",
        "index build",
        "keys create",
        "runs export",
        "store check",
        "usage reconcile",
    } <= explained


@pytest.mark.parametrize(
    "arguments", [[], ["asc"], ["ask"], ["ask", "Q?", "--sream"], ["check", "--lve"]]
)
def test_a_misspelt_command_ends_with_its_usage(
    arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 2, as in argparse."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: rolegate")


@pytest.mark.parametrize(
    "arguments",
    [
        ("ask", "Who?", "--max-tok", "10"),
        ("table", "Who?", "--columns", "a*", "--max-row", "3"),
        ("runs", "list", "--stat", "failed"),
        ("retrieve", "serve", "--inde", "x"),
        ("sft", "mini-world", "--ou", "x"),
    ],
)
def test_an_option_is_not_abbreviated(
    arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """An abbreviation could mean another option in the next version."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert (ended.value.code, capsys.readouterr().out) == (2, "")


def test_a_good_config_is_shown_and_reported_as_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each role is shown with model, address and prompt, including square brackets.

    No model is called.
    """
    monkeypatch.setenv("COLUMNS", "300")
    folder = tmp_path / "[my] configs"
    folder.mkdir()
    file = config_file(folder, "http://127.0.0.1:9/v1", 'address = "127.0.0.1:9"')

    assert main(["check", "--config", str(file)]) == 0

    shown = capsys.readouterr().out
    assert shown.count("http://127.0.0.1:9/v1") == 3
    assert shown.count("[my] configs/prompt.txt") == 3
    assert shown.endswith(f"{file}: fine\n")
    assert not (folder / "runs.db").exists()


def test_a_bad_config_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line has the file, the key and the problem; the status is 1."""
    file = config_file(tmp_path, "http://127.0.0.1:9/v1", 'adress = "127.0.0.1:9"')

    assert main(["check", "--config", str(file)]) == 1

    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (
        "",
        f"rolegate: {file}: retrieval.adress: unknown key; did you mean retrieval.address?\n",
    )


def test_an_answer_is_shown_with_its_evidence_and_tokens(
    gateway: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output has the answer, each sub-query with its report and sources, and the tokens by
    role, but no progress.
    """
    assert main(["ask", QUESTION, "--address", gateway]) == 0

    shown = capsys.readouterr()
    assert "in 1943" in shown.out
    assert "answered" in shown.out
    assert (
        f"1. {DIRECTOR} → Michael Mann\n   Heat: “Heat is a film by Michael Mann.”\n" in shown.out
    )
    assert f"2. {BORN} → 1943" in shown.out
    assert all(
        role in shown.out
        for role in ("delegation", "execution", "answer", "backbone", "small", "fixed")
    )
    assert re.search(r"^run-\w+, \d+\.\d s$", shown.out, re.MULTILINE)
    assert "round" not in shown.err


def test_progress_goes_to_the_other_stream(
    gateway: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounds, sub-queries, searches and reports are shown on standard error."""
    assert main(["ask", "--stream", QUESTION, "--address", gateway]) == 0

    shown = capsys.readouterr()
    steps = [
        "round 1",
        f"→ 1. {DIRECTOR}",
        f"searched “{DIRECTOR}”: Heat",
        "← 1. Michael Mann",
        "round 2",
        "← 2. 1943",
    ]
    places = [shown.err.index(step) for step in steps]
    assert places == sorted(places)
    assert "in 1943" in shown.out
    assert "round" not in shown.out


def test_json_output_is_the_answer_alone(gateway: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is one line with the field names of the protocol."""
    assert main(["ask", "--json", QUESTION, "--address", gateway]) == 0

    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert shown.out.count("\n") == 1
    assert shown.err == ""
    assert (answer["answer"], answer["outcome"]) == ("in 1943", "ANSWER_OUTCOME_ANSWERED")
    assert [result["sub_query"] for result in answer["results"]] == [DIRECTOR, BORN]
    assert answer["run_id"].startswith("run-")


def test_streamed_json_has_one_line_per_event(
    gateway: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Events are numbered from 1 without gaps; the last event is `done`, with the whole answer."""
    assert main(["ask", "--stream", "--json", QUESTION, "--address", gateway]) == 0

    shown = capsys.readouterr()
    events = [json.loads(line) for line in shown.out.splitlines()]
    kinds = [next(key for key in event if key != "event_number") for event in events]
    one_round = ["round_started", "sub_query_dispatched", "search_done", "reported"]
    assert shown.err == ""
    assert [int(event["event_number"]) for event in events] == list(range(1, len(events) + 1))
    last = ["round_started", "answer_delta", "answer_written", "usage_counted", "done"]
    assert kinds == ["run_started", *one_round, *one_round, *last]
    assert events[-1]["done"]["answer"] == "in 1943"


def test_markup_in_a_text_is_shown_literally(
    gateway: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Square brackets in a question, a report or a title neither colour the terminal nor vanish."""
    assert main(["ask", "Is [bold]this[/bold] [/red] bold?", "--address", gateway]) == 0

    assert "in 1943" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [[], ["--json"], ["--stream"]])
def test_a_dead_address_is_reported_in_one_line(
    flags: list[str], dead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line has the address and what to do; the status is 1."""
    assert main(["ask", QUESTION, "--address", dead, *flags]) == 1

    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        (
            f"rolegate: no gateway answers at {dead}; start one with `rolegate serve`, or "
            "give another address. If the gateway is still starting, wait until it prints "
            "serve.ready."
        )
    ]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("  ", "question is empty; write a question in plain words."),
        (
            "x" * 201,
            "question has 201 characters; at most 200 are allowed (server.max_question_chars); "
            "shorten it.",
        ),
        (DEAD_QUESTION, "delegation at http://127.0.0.1:9/v1: connection refused"),
    ],
)
def test_a_message_of_the_gateway_is_shown_in_one_line(
    gateway: str, question: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The transport's words are left out; the status is 1."""
    assert main(["ask", question, "--address", gateway]) == 1

    assert capsys.readouterr().err == f"rolegate: {message}\n"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "1e9"])
def test_an_impossible_timeout_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", QUESTION, f"--timeout={seconds}"]) == 1

    limit = "less than 86400" if seconds == "1e9" else "more than 0"
    line = f"rolegate: --timeout: must be {limit}, got '{seconds}'.\n"
    assert capsys.readouterr().err.endswith(line)


def test_an_index_is_built(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Word statistics are optional; the output says what was built."""
    out = tmp_path / "index"

    assert main(["index", "build", str(corpus), "--out", str(out), "--lexical"]) == 0

    shown = capsys.readouterr().out.replace("\n", "")
    assert shown.startswith(
        f"{out}: 1 document (1 read now, 0 skipped), 3 passages (3 embedded now), all-MiniLM-"
    )
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["passages"], manifest["lexical"]) == (3, True)


def test_a_bad_row_is_named_by_its_line(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file is left that could be mistaken for an index."""
    with corpus.open("a") as file:
        file.write('{"id": "x"}\n')

    assert main(["index", "build", str(corpus), "--out", str(tmp_path / "index")]) == 1

    assert (
        f"rolegate: {corpus}:4: lacks the required field `text`; each row"
        in capsys.readouterr().err
    )
    assert list(tmp_path.iterdir()) == [corpus]


def test_an_existing_folder_is_left_alone(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "note.txt").write_text("keep")

    assert main(["index", "build", str(corpus), "--out", str(out)]) == 1

    assert (
        f"rolegate: {out}: exists and is not an index (it contains note.txt); choose "
        "another folder.\n" in capsys.readouterr().err
    )
    assert [file.name for file in out.iterdir()] == ["note.txt"]


def test_an_endpoint_without_a_model_is_refused(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An embedder at an address needs its model's name and dimension."""
    arguments = ["index", "build", str(corpus), "--out", str(tmp_path / "index")]

    assert main([*arguments, "--embedder-url", "http://127.0.0.1:9/v1"]) == 1

    assert "an embedder with engine or base_url also needs model and" in capsys.readouterr().err


def test_a_retrieval_server_answers_both_ways_and_ends_at_sigterm(
    corpus: Path,
    tmp_path: Path,
    word_embedder: EmbedderConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gRPC and HTTP listen at free ports, which the log shows.

    The status is 0, and the signal handlers are restored.
    """
    interrupts = signal.getsignal(signal.SIGINT)
    at = embedding.options(word_embedder)
    built = ["index", "build", str(corpus), "--out", str(tmp_path / "index"), "--lexical"]
    assert main([*built, *at]) == 0
    arguments = [
        "--index",
        str(tmp_path / "index"),
        "--address",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ]
    reading, writing = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), "rw", strict=True))

    def asked() -> tuple[SearchResponse, Any]:
        address, url = ready(reading).split(", ")
        try:
            with grpc.insecure_channel(address) as channel:
                search_response = RetrievalServiceStub(channel).Search(
                    SearchRequest(queries=["the red planet"]), timeout=30
                )
            body = json.dumps({"queries": ["who makes honey?"]}).encode()
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as response:
                return search_response, json.load(response)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with reading, ThreadPoolExecutor(1) as client:
        with writing, monkeypatch.context() as patched:
            patched.setattr("sys.stdout", writing)
            # It would stay set for all later tests
            patched.setattr("serving.signals.tune_interpreter", lambda: None)
            asking = client.submit(asked)
            assert main(["retrieve", "serve", *arguments, *at, "--top-k", "1"]) == 0
        search_response, posted = asking.result()
        assert "serve.stopped" in reading.read()
    assert [passage.passage_id for passage in search_response.results[0].passages] == ["mars"]
    assert [document["id"] for document in posted["result"][0]] == ["bee"]
    assert signal.getsignal(signal.SIGINT) is interrupts


@pytest.mark.parametrize("command", ["serve", "retrieve serve", "ask x", "runs list"])
def test_an_address_without_a_port_is_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error shows the form of an address."""
    with pytest.raises(SystemExit):
        main([*command.split(), "--address", "localhost"])

    assert (
        "--address: 'localhost' is not HOST:PORT, with a port from 0 to 65535"
        in capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        main([*command.split(), "--address", "http://localhost:1"])
    assert (
        "--address: 'http://localhost:1' is not HOST:PORT; leave out http://"
        in capsys.readouterr().err
    )


def test_a_command_works_with_a_closed_output(tmp_path: Path) -> None:
    code = (
        "import sys; from serving.cli.main import main; sys.exit(main(['init', '--preset', "
        "'hosted', '--yes']))"
    )
    closed = ["sh", "-c", 'exec "$0" -c "$1" >&- 2>&-', sys.executable, code]
    subprocess.run(closed, cwd=tmp_path, env=scripted_gateway.environment(), check=True)

    assert (tmp_path / "rolegate.toml").is_file()


@pytest.mark.parametrize(
    ("option", "amount"),
    [
        *(("--max-cost-usd", amount) for amount in ("nan", "inf", "1e300", "-1", "0")),
        *(("--max-total-tokens", amount) for amount in ("99999999999999999999999", "0")),
    ],
)
def test_a_budget_that_cannot_be_spent_is_refused_by_option(
    option: str, amount: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option is named before confirmation is requested."""
    assert main(["ask", "Who?", f"{option}={amount}"]) == 1

    error = capsys.readouterr().err
    assert f"rolegate: {option}: must be " in error
    assert error.endswith(f", got '{amount}'.\n")


@pytest.mark.parametrize("command", ["serve", "retrieve serve"])
def test_a_missing_index_is_reported_in_one_line(
    command: str, tmp_path: Path, dead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no traceback, and the status is 1."""
    file = config_file(tmp_path, f"http://{dead}/v1", 'index = "absent"')
    chosen = (
        ["--config", str(file)] if command == "serve" else ["--index", str(tmp_path / "absent")]
    )

    assert main([*command.split(), *chosen, "--address", "127.0.0.1:0"]) == 1

    (line,) = (
        line for line in capsys.readouterr().err.splitlines() if line.startswith("rolegate:")
    )
    assert line == (
        f"rolegate: {tmp_path}/absent: contains no finished index (manifest.json: No such file or "
        "directory); run `rolegate index build` with your files in `documents` of the "
        "config, or choose another folder."
    )


@pytest.mark.parametrize(
    "option", ["--out=index", "--lexical", "--chunk-tokens=100", "--embedder-url=http://e/v1"]
)
def test_an_option_of_given_paths_is_refused_if_the_config_names_the_documents(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["index", "build", "--preset", "hosted", option])

    name = option.partition("=")[0]
    assert f"error: {name} has no effect without PATHS; give both\n" in capsys.readouterr().err


def test_given_paths_are_refused_together_with_an_index_of_the_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "index")
    assert main(["index", "build", str(tmp_path), "--out", out, "--index", "contracts"]) == 1

    assert "--index: names an index of the config, but PATHS" in capsys.readouterr().err
    assert not Path(out).exists()


def test_a_timeout_of_probes_is_refused_where_nothing_is_probed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--preset", "hosted", "--timeout", "3"])

    assert "error: --timeout has no effect without --live; give both\n" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_served_question_whose_model_is_dead_names_role_and_address(
    number: signal.Signals, tmp_path: Path, dead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gateway starts, the error names the role that did not answer, and a signal ends the
    gateway with status 0.
    """
    file = config_file(tmp_path, f"http://{dead}/v1", f'address = "{dead}"')

    with service(
        "serve", "--config", str(file), "--address", "127.0.0.1:0", cwd=tmp_path
    ) as server:
        status = main(["ask", QUESTION, "--address", server.ready()])
        server.process.send_signal(number)
        log = server.rest()

    assert status == 1
    assert capsys.readouterr().err.startswith(f"rolegate: delegation at http://{dead}/v1: ")
    assert "serve.stopped" in log
    assert server.process.returncode == 0
    assert "Traceback" not in log


def test_the_openai_compatible_server_starts_and_stops_with_the_gateway(
    tmp_path: Path, dead: str
) -> None:
    """The log has its address, and its answers come from this gateway."""
    file = config_file(tmp_path, f"http://{dead}/v1", f'address = "{dead}"')
    body = json.dumps(
        {"model": "rolegate", "messages": [{"role": "user", "content": QUESTION}]}
    ).encode()
    anywhere = ["--address", "127.0.0.1:0", "--http", "127.0.0.1:0"]

    with service("serve", "--config", str(file), *anywhere, cwd=tmp_path) as server:
        server.ready()
        door = re.search(r"http://127\.0\.0\.1:\d+/v1", server.seen)
        assert door is not None
        request = urllib.request.Request(
            f"{door[0]}/chat/completions", body, {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        server.process.send_signal(signal.SIGTERM)
        log = server.rest()

    with refused.value as reply:
        assert json.load(reply)["error"]["message"].startswith(f"delegation at http://{dead}/v1: ")
    assert server.process.returncode == 0
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("address", "message"),
    [("0.0.0.0:8080", "create one with `rolegate keys create`"), ("{gateway}", "cannot listen on")],
)
def test_an_address_that_cannot_be_bound_is_reported_with_its_key(
    address: str, message: str, tmp_path: Path, gateway: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line; the status is 1."""
    file = config_file(tmp_path, "http://127.0.0.1:9/v1", 'address = "127.0.0.1:9"')
    http = address.format(gateway=gateway)

    assert main(["serve", "--config", str(file), "--address", "127.0.0.1:0", "--http", http]) == 1

    (line,) = (
        line for line in capsys.readouterr().err.splitlines() if line.startswith("rolegate:")
    )
    assert line.startswith("rolegate: server.http: ")
    assert message in line


def test_a_port_in_use_is_reported(
    tmp_path: Path, dead: str, gateway: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what to do; the status is 1."""
    file = config_file(tmp_path, f"http://{dead}/v1", f'address = "{dead}"')

    assert main(["serve", "--config", str(file), "--address", gateway]) == 1

    assert (
        f"rolegate: server.address: cannot listen on {gateway}; is the port in use?"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_question_without_an_address_starts_a_gateway(
    flags: list[str], tmp_path: Path, dead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gateway is stopped afterwards, the run is in its store, and its log is not mixed into the
    answer.
    """
    file = config_file(tmp_path, f"http://{dead}/v1", f'address = "{dead}"')

    assert main(["ask", QUESTION, "--config", str(file), *flags]) == 1

    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"rolegate: delegation at http://{dead}/v1: " in shown.err
    assert (tmp_path / "runs.db").stat().st_size > 0


@pytest.mark.parametrize("tokens", ["0", "31", "8193"])
def test_passages_with_an_impossible_length_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tokens: str
) -> None:
    """The error comes before anything is written."""
    out = ("--out", str(tmp_path / "index"))
    assert main(["index", "build", str(tmp_path), *out, "--chunk-tokens", tokens]) == 1
    limit = "at most 8192" if tokens == "8193" else "at least 32"
    assert f"--chunk-tokens: must be {limit}, got '{tokens}'." in capsys.readouterr().err
    assert not (tmp_path / "index").exists()


def test_a_config_that_does_not_match_its_index_is_not_valid(
    corpus: Path, tmp_path: Path, word_embedder: EmbedderConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Word statistics and the embedder are compared without loading anything."""
    built = ["index", "build", str(corpus), "--out", str(tmp_path / "index")]
    assert main([*built, *embedding.options(word_embedder)]) == 0
    other = (
        'index = "index"\nlexical = true\n[retrieval.embedder]\nmodel = "other"\ndimension = 8\n'
    )
    file = config_file(
        tmp_path, "http://127.0.0.1:9/v1", f'{other}base_url = "http://127.0.0.1:9/v1"'
    )

    assert main(["check", "--config", str(file)]) == 1

    shown = capsys.readouterr().out
    assert f"{file}: not ready yet" in shown
    assert "retrieval.lexical: must be false, because the index in" in shown
    assert f"was built with {embedding.MODEL}; configure" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("pyarrow.parquet", "sft", "sft"),
        ("pandas", "bench", "widesearch"),
        ("ijson", "bench", "datasets"),
        ("mcp.server", "mcp", "mcp"),
        ("tokenizers", "index", "minilm"),
        ("ray", "index", "ray"),
    ],
)
def test_a_missing_package_names_its_extra(module: str, command: str, extra: str) -> None:
    """The command that installs the extra can be copied.

    The command's own extra comes first, since it includes all others that are needed.
    """
    assert (
        missing_extra(module, command)
        == f"sh {scripted_gateway.ROOT}/scripts/setup.sh {sys.prefix} {extra}"
    )
    assert missing_extra("no_such_package", "ask") == "reinstall rolegate as the README says"


def test_the_help_of_training_needs_no_extra() -> None:
    """Users without the extra can read the help."""
    hidden = [
        "accelerate",
        "datasets",
        "ijson",
        "matplotlib",
        "peft",
        "pyarrow",
        "torch",
        "transformers",
        "trl",
    ]
    commands = [
        "sft dataset",
        "sft train",
        "sft publish",
        "sft retrain",
        "bench report",
        "bench sweep",
    ]
    script = f"""
import sys
sys.modules.update(dict.fromkeys({hidden}))
from serving.cli.main import main
from serving.config.config import EmbedderConfig
for command in {commands}:
    try:
        print(main([*command.split(), "--help"]))
    except SystemExit as end:
        assert end.code == 0
"""
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    for command in commands:
        assert f"usage: rolegate {command}" in process.stdout


def test_an_empty_question_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["ask", "  "]) == 1
    assert "question: is empty" in capsys.readouterr().err
