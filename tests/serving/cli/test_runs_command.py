"""`rolegate runs` with a gateway in another process."""

import json
import uuid

import pytest
from rich.console import Console, RenderableType
from rolegate.client import Client, GatewayError
from rolegate.v1 import run_service_pb2 as pb
from rolegate.v1 import usage_pb2
from rolegate.v1.answer_service_pb2 import AnswerOutcome

from router.protocol import NO_EVIDENCE, Passage
from router.trace import Conversation, Execution
from router.trace.values import SearchRecord, ToolCall
from serving.cli.main import main
from serving.cli.runs import _show_execution
from serving.cli.tables import calls_table, runs_table
from tests.scripted_gateway import DIRECTOR, QUESTION

HEADER = "run status started UTC s request"


@pytest.fixture(scope="module")
def run_id(gateway: str) -> str:
    """Id of a completed run."""
    with Client(gateway) as client:
        return client.ask(QUESTION).run_id


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the printed lines with single spaces."""
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_runs_are_listed_newest_first(
    gateway: str, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list has the requested number of runs; identifiers are never cut."""
    with Client(gateway) as client:
        newer = client.ask(QUESTION).run_id
    assert main(["runs", "list", "--address", gateway]) == 0
    shown = lines(capsys)
    assert [line.split()[0] for line in shown if line.startswith("run-")] == [newer, run_id]
    assert HEADER in shown
    assert main(["runs", "list", "--limit", "1", "--json", "--address", gateway]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["run_id"] == newer
    assert main(["runs", "list", "--kind", "execute", "--address", gateway]) == 0
    assert main(["runs", "list", "--unsupported", "--address", gateway]) == 0
    assert "run-" not in "".join(lines(capsys))


def test_a_run_is_one_line_in_a_pipe(
    gateway: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """COLUMNS wraps it."""
    monkeypatch.delenv("COLUMNS", raising=False)
    question = f"{QUESTION} {'Please look twice at it. ' * 6}".strip()
    with Client(gateway) as client:
        client.ask(question)
    listing = ["runs", "list", "--limit", "1", "--address", gateway]
    assert main(listing) == 0
    (line,) = [line for line in lines(capsys) if line.startswith("run-")]
    assert line.endswith(question)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(listing) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_run_is_shown_with_its_calls_and_sums(
    gateway: str, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` prints JSON, and `--trace` the whole trace."""
    assert main(["runs", "show", run_id, "--address", gateway]) == 0
    shown = lines(capsys)
    assert "# role model why outcome prompt written cost s" in shown
    assert sum("first completed" in line for line in shown) == 8
    assert "all 8 144 unknown 36 unknown" in shown
    assert [line for line in shown if line.startswith("round")] == ["round 1", "round 2"]
    assert "[system] " not in "\n".join(shown)
    assert main(["runs", "show", run_id, "--prompts", "--address", gateway]) == 0
    shown = lines(capsys)
    assert {"delegation", "answer"} < set(shown)
    assert sum(line.startswith("[assistant]") for line in shown) == 8
    assert main(["runs", "show", run_id, "--json", "--address", gateway]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["run"]["run_id"], len(whole["calls"]), whole["trace_json"]) == (run_id, 8, "")
    assert main(["runs", "show", run_id, "--trace", "--address", gateway]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["answer"] == "in 1943"


def test_a_run_without_calls_has_no_tables(
    gateway: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(gateway) as client, pytest.raises(GatewayError):
        client.ask(QUESTION, max_total_tokens=1)
    with Client(gateway) as client:
        refused = next(client.runs(status="failed"))
    assert main(["runs", "show", refused.run_id, "--address", gateway]) == 0
    shown = lines(capsys)
    assert f"request: {QUESTION}" in shown
    assert not any(line.startswith(("#", "all")) for line in shown)


def test_watch_shows_events_and_answer_on_different_streams(
    gateway: str, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` prints lines, and events may begin at any number."""
    assert main(["runs", "watch", run_id, "--address", gateway]) == 0
    output = capsys.readouterr()
    assert output.err.splitlines()[:2] == ["round 1", "  → 1. Who directed Heat?"]
    assert "│ in 1943" in output.out
    assert main(["runs", "watch", run_id, "--after", "10", "--json", "--address", gateway]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event_number"] for event in events] == ["11", "12", "13"]
    assert events[-1]["done"]["run_id"] == run_id


def test_cancel_and_feedback_reach_the_gateway(
    gateway: str, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A completed run is unchanged."""
    assert main(["runs", "cancel", run_id, "--address", gateway]) == 0
    assert (
        main(
            ["runs", "feedback", run_id, "--wrong", "--right-answer", "1944", "--address", gateway]
        )
        == 0
    )
    cancelled, noted = lines(capsys)
    assert cancelled == f"run {run_id} has ended already"
    assert noted.startswith("stored as feedback-")
    assert main(["runs", "show", run_id, "--address", gateway]) == 0
    shown = lines(capsys)
    assert f"request: {QUESTION}" in shown
    assert "output: in 1943" in shown
    assert "feedback: rejected, right answer '1944'" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "run-0"], "run_id 'run-0': no such run is stored here; check the identifier."),
        (["watch", "run-0"], "run_id 'run-0'"),
        (["cancel", "run-0"], "run_id 'run-0'"),
        (["feedback", "run-0"], "give --right, --wrong"),
        (["list", "--since", "soon"], "'soon' is not a time"),
        (["list", "--limit", "-1"], "--limit: must be at least 1, got '-1'."),
        (["feedback", "run-0", "--comment", "caf\udce9"], "can't encode character '\\udce9'"),
    ],
)
def test_an_impossible_request_is_reported_in_one_line(
    gateway: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 1."""
    assert main(["runs", *arguments, "--address", gateway]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def rows(table: RenderableType, width: int = 120) -> list[str]:
    """Return the rows that a terminal shows."""
    with (console := Console(width=width)).capture() as shown:
        console.print(table)
    return [" ".join(line.split()) for line in shown.get().splitlines()]


def test_tenants_and_kinds_are_shown_if_there_are_several() -> None:
    """Each run has one line; a running run has no duration, and a long request is cut."""
    runs = [
        pb.Run(
            run_id="run-1",
            tenant="acme",
            kind=pb.RUN_KIND_COMPLETE,
            status=pb.RUN_STATUS_RUNNING,
            request="[b]?",
        ),
        pb.Run(
            run_id="run-2", tenant="other", kind=pb.RUN_KIND_EXECUTE, status=pb.RUN_STATUS_FAILED
        ),
    ]
    shown = rows(runs_table(runs))
    assert "run-1 complete running acme 01-01 00:00 – [b]?" in shown
    assert "run-2 execute failed other 01-01 00:00 –" in shown
    runs[0].request = "a word " * 30
    (line,) = (line for line in rows(runs_table(runs[:1])) if line.startswith("run-1"))
    assert line.startswith("run-1 running 01-01 00:00 – a word a word")
    assert line.endswith("…")


@pytest.mark.parametrize("outcome", AnswerOutcome.values())
@pytest.mark.parametrize("tenants", [["acme"], ["acme", "a tenant of a long name"]])
def test_a_run_fits_into_80_columns(outcome: AnswerOutcome, tenants: list[str]) -> None:
    """The line has the whole identifier, which can be copied, and the status."""
    runs = [
        pb.Run(
            run_id=str(uuid.uuid4()),
            tenant=tenant,
            kind=pb.RUN_KIND_COMPLETE,
            outcome=outcome,
            request="who " * 9,
        )
        for tenant in tenants
    ]
    for run in runs:
        run.duration.FromMilliseconds(123_400)
    lines_ = rows(runs_table(runs), 80)
    for run in runs:
        (line,) = (line for line in lines_ if line.startswith(run.run_id))
        status = AnswerOutcome.Name(outcome).removeprefix("ANSWER_OUTCOME_").lower()
        assert not outcome or line.startswith(f"{run.run_id} {status.replace('_', ' ')}")
        assert "01-01 00:00 123.4" in line


def test_inexact_token_counts_are_marked() -> None:
    """Lower bounds and estimates are marked; unknown counts are shown as unknown."""
    reported = pb.UpstreamCall(
        call_id="run-1-0",
        role=usage_pb2.ROLE_ANSWER,
        model="m",
        counted="reported",
        prompt_tokens=7,
        completion_tokens=5,
        cost_nano_usd=12_000,
    )
    calls = [pb.UpstreamCall.FromString(reported.SerializeToString()) for _ in range(4)]
    for number, counted in enumerate(("reported", "lower_bound", "estimated", "")):
        calls[number].call_id = f"run-1-{number}"
        calls[number].counted = counted
    for call in calls[1:]:
        call.ClearField("cost_nano_usd")
    shown = rows(calls_table(calls))
    assert "0 answer m – – 7 5 $0.000012 0.00" in shown
    assert "1 answer m – – ≥7 ≥5 unknown 0.00" in shown
    assert "2 answer m – – ~7 ~5 unknown 0.00" in shown
    assert "3 answer m – – unknown unknown unknown 0.00" in shown


def test_search_shows_passages_with_their_places(
    gateway: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best comes first; `--json` prints JSON."""
    assert main(["search", DIRECTOR, "--address", gateway]) == 0
    assert lines(capsys)[:2] == [
        "0.900 Heat (p1)",
        "Heat is a film by Michael Mann. It [sic] is long.",
    ]
    assert main(["search", DIRECTOR, "--top-k", "1", "--json", "--address", gateway]) == 0
    assert json.loads(capsys.readouterr().out)["passage_id"] == "p1"


def test_tool_calls_are_shown_with_server_duration_and_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They are shown alongside searches."""
    page = Passage("web:fetch:1#1", "Heat", "Heat is a film.")
    searches = (
        SearchRecord("Heat", (page,)),
        SearchRecord("fetch a", (page,), call=ToolCall("web", "fetch", "a", 1.24)),
        SearchRecord("fetch b", (), call=ToolCall("web", "fetch", "b", 60.0, "it took too long")),
    )
    execution = Execution("Who?", NO_EVIDENCE, "no_report", searches, Conversation(()))
    _show_execution(Console(width=200), execution, "1", prompts=False)
    assert lines(capsys)[1:] == [
        "searched “Heat”: Heat",
        "called web in 1.2 s “fetch a”: Heat",
        "called web in 60.0 s “fetch b”: it took too long",
    ]
