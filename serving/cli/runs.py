"""`rolegate runs`: what became of the runs of a running gateway."""

import argparse
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
from rich.console import Console
from rolegate.client import Client, Stream
from rolegate.client.requests import ANSWER_S, TABLE_S, SearchOptions
from rolegate.v1 import run_service_pb2 as pb

from router.errors import BadRequest
from router.trace import Conversation, Execution, Run, Trajectory
from router.trace.turns import tool_sums
from router.trace.values import TableRun, ToolCall
from serving.cli.options import (
    FORMATS,
    add_command,
    add_connection,
    json_of,
    new_parser,
    show_each,
    time_argument,
    timeout,
    with_client,
)
from serving.cli.table import TableView
from serving.cli.tables import (
    KINDS,
    STATUSES,
    AnswerView,
    calls_table,
    feedback_line,
    print_line,
    runs_table,
    tools_table,
    usage_table,
)


def runs(arguments: Sequence[str]) -> int:
    """One of the subcommands."""
    if arguments[:1] == ["export"]:
        from serving.cli.store import export  # it reads the store, with what that takes

        return export(arguments[1:])
    given = _parser().parse_args(arguments)
    return with_client(given, lambda client: int(given.work(client, given) or 0))


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("runs", __doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = add_command(
        commands, "list", "the newest runs", "Lists runs, the newest first.", _list
    )
    listing.add_argument(
        "--limit", type=int, default=50, metavar="N", help="how many (default: 50)"
    )
    listing.add_argument("--kind", choices=KINDS, help="one kind only")
    listing.add_argument("--status", choices=STATUSES, help="only those that stand so")
    listing.add_argument(
        "--unsupported",
        action="store_true",
        help="only answers that their evidence does not support",
    )
    listing.add_argument("--since", type=time_argument, metavar="TIME", help=FORMATS)
    listing.add_argument(
        "--until", type=time_argument, metavar="TIME", help="runs that started before"
    )
    listing.add_argument("--tenant", default="", help="one tenant's only")
    what = (
        "Shows a run: sub-queries by round, reports and their evidence, calls and sums, and "
        "the feedback on it."
    )
    show = add_command(commands, "show", "one run", what, _show)
    show.add_argument(
        "--prompts", action="store_true", help="show what each model read and wrote, too"
    )
    show.add_argument(
        "--trace", action="store_true", help="print all that was said and found, as JSON"
    )
    what = "Shows what happens in one, also after its end."
    watch = add_command(commands, "watch", "what happens in an answer or a table", what, _watch)
    watch.add_argument(
        "--after", type=int, default=0, metavar="N", help="only what came after event number N"
    )
    what = """Goes on with a run whose gateway was killed, from the last turn of each of its models:
    one of the last hour, at the gateway that worked on it, started anew since. What was spent
    before counts against its budget."""
    resume = add_command(
        commands, "resume", "go on with an interrupted answer or table", what, _resume
    )
    what = f"deadline (default: {ANSWER_S:g}, of tables {TABLE_S:g})"
    resume.add_argument("--timeout", type=timeout, metavar="SECONDS", help=what)
    cancel = add_command(
        commands, "cancel", "stop a run", "Stops a run; one that has ended stays as it is.", _cancel
    )
    what = "Keeps your opinion beside a run."
    feedback = add_command(commands, "feedback", "say what became of an answer", what, _feedback)
    verdict = feedback.add_mutually_exclusive_group()
    verdict.add_argument(
        "--good", dest="accepted", action="store_const", const=True, help="it was right"
    )
    verdict.add_argument(
        "--bad", dest="accepted", action="store_const", const=False, help="it was wrong"
    )
    feedback.add_argument("--score", type=float, help="from 0 to 1")
    feedback.add_argument(
        "--right-answer", default="", metavar="TEXT", help="what it should have been"
    )
    feedback.add_argument("--comment", default="", metavar="TEXT", help="whatever there is to say")
    for command in (show, watch, resume, cancel, feedback):
        command.add_argument("run_id", metavar="RUN_ID", help="as `runs list` shows it")
    for command in (listing, show, watch, resume):
        command.add_argument("--json", action="store_true", help="print JSON")
    for command in (listing, show, watch, resume, cancel, feedback):
        add_connection(command)
    commands.add_parser(
        "export", add_help=False, help="write runs with their traces, from the config's store"
    )
    return parser


def _list(client: Client, given: argparse.Namespace) -> None:
    if given.limit < 1:
        raise BadRequest(f"--limit {given.limit}: must be at least 1.")
    wanted = client.runs(
        tenant=given.tenant,
        kind=given.kind,
        status=given.status,
        unsupported=given.unsupported,
        start=given.since,
        end=given.until,
    )
    runs = list(islice(wanted, given.limit))
    show_each(runs, lambda: runs_table(runs), as_json=given.json)


def _show(client: Client, given: argparse.Namespace) -> None:
    found = client.run(given.run_id, trace=given.trace or not given.json)
    if given.trace:
        print(found.trace_json)
    elif given.json:
        print(json_of(found))
    else:
        console = Console()
        console.print(runs_table([found.run]))
        for name, text in (("request", found.run.request), ("output", found.output)):
            if text:
                console.print(f"{name}: {text}", markup=False, highlight=False)
        trace = msgspec.json.decode(found.trace_json, type=Run)
        _show_trace(console, trace, prompts=given.prompts)
        for feedback in found.feedback:
            console.print(f"feedback: {feedback_line(feedback)}", markup=False, highlight=False)
        if found.calls:
            console.print(calls_table(found.calls))
        if tools := tool_sums(trace):
            console.print(tools_table(tools))
        table = (
            client.get_table(given.run_id) if trace.kind == "table" and not trace.redacted else None
        )
        if table and table.columns:
            TableView(console, console, as_json=False).show(table)
        elif found.calls:
            console.print(usage_table(found.usage))
        if found.error:
            console.print(found.error, style="red", markup=False, highlight=False)


def _show_trace(console: Console, run: Run, *, prompts: bool) -> None:
    """Print sub-queries, searches and reports by round; `prompts`: also what each model read
    and wrote.
    """
    match run.result:
        case Trajectory() as found:
            first = 1
            for number, count in enumerate(found.rounds):
                print_line(console, f"round {number + 1}")
                for index, execution in enumerate(found.block(number), first):
                    _show_execution(console, execution, str(index), prompts=prompts)
                first += count
            if prompts and found.delegation:
                print_line(console, "delegation")
                _show_messages(console, found.delegation, 2)
            if prompts and found.answering:
                print_line(console, "answer")
                _show_call(console, found.answering, 2)
        case TableRun() as table:
            for index, execution in enumerate(table.executions, 1):
                _show_execution(console, execution, str(index), prompts=prompts)
            if prompts and table.delegation:
                print_line(console, "delegation")
                _show_messages(console, table.delegation, 2)
        case Execution() as execution:
            _show_execution(console, execution, "1", prompts=prompts)
        case Conversation() as conversation if prompts:
            _show_call(console, conversation, 0)


def _show_execution(console: Console, execution: Execution, number: str, *, prompts: bool) -> None:
    """Print an execution, and inside of a manager's those of its workers."""
    report = execution.report
    if execution.before:
        _show_execution(console, execution.before, number, prompts=prompts)
    said = execution.outcome.replace("_", " ") if execution.failed else report.answer
    said += f" ({execution.manager})" if execution.manager else ""
    print_line(console, f"{number}. {execution.sub_query} → {said}", 2, "bold")
    for at, worker in enumerate(execution.work.executions if execution.work else (), 1):
        _show_execution(console, worker, f"{number}.{at}", prompts=prompts)
    for search in execution.searches:
        did = "searched"
        found = ", ".join(passage.title for passage in search.shown) or "nothing found"
        if isinstance(call := search.call, ToolCall):
            did = f"called {call.server} in {call.duration_s:.1f} s"
            found = call.error or found
        print_line(console, f"{did} “{search.query}”: {found}", 5)
    for point, citations in zip(report.evidence, execution.citations(report.evidence), strict=True):
        places = ", ".join(citation.passage_id for citation in citations)
        print_line(console, f"“{point}” ({places or 'in no passage'})", 5, "cyan")
    if prompts:
        main = execution.work.delegation if execution.work else None
        _show_messages(console, main or execution.conversation, 5)


def _show_messages(console: Console, conversation: Conversation, indent: int) -> None:
    """Print the messages; in conversations of several turns, what the model wrote stands among
    them.
    """
    for message in conversation.messages:
        print_line(console, f"[{message.role}] {message.content}", indent, "dim")


def _show_call(console: Console, conversation: Conversation, indent: int) -> None:
    """Print a single call's messages, and what the model wrote."""
    _show_messages(console, conversation, indent)
    for output in conversation.outputs:
        print_line(console, f"[assistant] {output.text}", indent, "dim")


def _watch(client: Client, given: argparse.Namespace) -> None:
    _follow(
        client, given, client.watch(given.run_id, given.after), of_table=_is_table(client, given)
    )


def _resume(client: Client, given: argparse.Namespace) -> None:
    resumed = SearchOptions(resume_run_id=given.run_id)
    of_table = _is_table(client, given)
    if of_table:
        events: Stream[Any] = client.stream_table("", (), (), given.timeout or TABLE_S, **resumed)
    else:
        events = client.stream("", given.timeout or ANSWER_S, **resumed)
    _follow(client, given, events, of_table=of_table)


def _is_table(client: Client, given: argparse.Namespace) -> bool:
    return client.run(given.run_id).run.kind == pb.RUN_KIND_TABLE


def _follow(
    client: Client, given: argparse.Namespace, events: Stream[Any], *, of_table: bool
) -> None:
    """Show what happens in a run, and what it comes to."""
    out = Console()
    progress = Console(stderr=True, quiet=given.json)
    if of_table:
        table = TableView(out, progress, as_json=given.json, events=True)
        table.show(client.whole(table.follow(events)))
    else:
        view = AnswerView(out, progress, stream=True, as_json=given.json)
        view.show(view.follow(events))


def _cancel(client: Client, given: argparse.Namespace) -> None:
    if client.run(given.run_id).run.status == pb.RUN_STATUS_RUNNING:
        client.cancel(given.run_id)
        print(f"told {given.run_id} to stop")
    else:
        print(f"{given.run_id} has ended already")


def _feedback(client: Client, given: argparse.Namespace) -> None:
    if (
        given.accepted is None
        and given.score is None
        and not given.right_answer
        and not given.comment
    ):
        raise BadRequest("say --good or --bad, or give --score, --right-answer or --comment.")
    noted = client.feedback(
        given.run_id,
        accepted=given.accepted,
        score=given.score,
        right_answer=given.right_answer,
        comment=given.comment,
    )
    print(f"noted as {noted}")
