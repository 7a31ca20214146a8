"""`rolegate runs`: list, show, watch, resume, cancel and rate the runs of a running gateway."""

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from rich.console import Console
from rolegate.client import Client, Stream
from rolegate.v1 import run_service_pb2 as pb

from router.errors import BadRequest
from router.trace import Conversation, Execution, Run
from router.trace.run import RunKind, RunStatus
from router.trace.values import ToolCall
from serving.cli.command import POSITIONAL, exclusive, run_subcommand
from serving.cli.grid import print_line
from serving.cli.options import (
    ConnectionOptions,
    PeriodOptions,
    Seconds,
    json_of,
    show_each,
    with_client,
)
from serving.cli.table import TableView
from serving.cli.tables import AnswerView, calls_table, feedback_line, runs_table, usage_table
from serving.terminal import table_console


class ListOptions(PeriodOptions):
    """Options of `runs list`."""

    limit: Annotated[int, Meta(ge=1)] = 50
    """Show at most this many runs."""
    kind: RunKind | None = None
    """Show only runs of this kind: answer (a question), table (a table), execute (one sub-query, by
    API), complete (one model call, by API), or shadow (a finished run that a version on trial
    repeated).
    """
    status: RunStatus | None = None
    """Show only runs with this status; interrupted means that the gateway stopped or was killed
    during the run.
    """
    key_id: str = ""
    """Show only runs of the API key with this ID (`rolegate keys list` shows the IDs)."""
    unsupported: bool = False
    """Show only answers that contain a name or a number that their cited evidence does not contain.
    """
    json: bool = False
    """Print JSON instead of a table, one object per line for each run."""


class RunOptions(ConnectionOptions, kw_only=True):
    """Options of commands on one run."""

    run_id: Annotated[str, POSITIONAL]
    """ID of the run (`rolegate runs list` shows it)."""


class JSONRunOptions(RunOptions):
    """Options of commands on one run that print JSON with --json."""

    json: bool = False
    """Print JSON."""


class ShowOptions(JSONRunOptions):
    """Options of `runs show`."""

    prompts: bool = False
    """Also show all prompts and outputs of the models."""
    trace: bool = False
    """Print the whole trace as JSON: all prompts, outputs, searches and reports."""


class WatchOptions(JSONRunOptions):
    """Options of `runs watch`."""

    after: int = 0
    """Show only events after this number. The events of a run are numbered from 1; --json shows the
    number as event_number (default: all events).
    """


class ResumeOptions(JSONRunOptions):
    """Options of `runs resume`."""

    timeout: Seconds | None = None
    """End the run after this many seconds (default: the gateway's limit)."""


class FeedbackOptions(RunOptions):
    """Options of `runs feedback`."""

    right: Annotated[bool, exclusive("verdict")] = False
    """Say that the answer was right."""
    wrong: Annotated[bool, exclusive("verdict")] = False
    """Say that the answer was wrong."""
    score: float | None = None
    """Rate the answer with a number from 0 (bad) to 1 (good)."""
    right_answer: str = ""
    """Store this text as the right answer; the training, the tests of versions and the run's page
    use it.
    """
    comment: str = ""
    """Store this text as a comment for people; nothing else reads it."""


def runs(arguments: Sequence[str]) -> int:
    """Run `rolegate runs`; return the exit status."""
    if arguments[:1] == ["export"]:
        from serving.cli.store import export  # imported only here, because it imports the database

        return export(arguments[1:])
    return run_subcommand(
        "runs",
        "List, show and change the runs of a running gateway.",
        {
            "list": _list,
            "show": _show,
            "watch": _watch,
            "resume": _resume,
            "cancel": _cancel,
            "feedback": _feedback,
            "export": "write runs with their traces to a file, from a gateway or a config's store",
        },
        arguments,
        with_client,
    )


def _list(client: Client, options: ListOptions) -> None:
    """List the runs of the gateway, newest first."""
    listed = client.runs(
        tenant=options.tenant,
        kind=options.kind,
        status=options.status,
        unsupported=options.unsupported,
        key_id=options.key_id,
        start=options.since,
        end=options.until,
    )
    runs = list(islice(listed, options.limit))
    show_each(runs, lambda: runs_table(runs), as_json=options.json)


def _show(client: Client, options: ShowOptions) -> None:
    """Show what happened in a run.

    Show the sub-queries of each round, the reports with their evidence, the model calls, the sums
    of tokens and cost, and the feedback.
    """
    details = client.run(options.run_id, trace=options.trace or not options.json)
    if options.trace:
        print(details.trace_json)
    elif options.json:
        print(json_of(details))
    else:
        _show_details(client, details, prompts=options.prompts)


def _show_details(client: Client, details: pb.GetRunResponse, *, prompts: bool) -> None:
    console = table_console()
    console.print(runs_table([details.run]))
    for name, text in (("request", details.run.request), ("output", details.output)):
        if text:
            print_line(console, f"{name}: {text}")

    trace = msgspec.json.decode(details.trace_json, type=Run)
    _show_trace(console, trace, prompts=prompts)
    for feedback in details.feedback:
        print_line(console, f"feedback: {feedback_line(feedback)}")

    if details.calls:
        console.print(calls_table(details.calls))
    table = None
    if trace.kind == "table" and not trace.redacted:
        table = client.get_table(details.run.run_id)
    if table and table.columns:
        TableView(console, console, stream=False, as_json=False).show(table)
    elif details.calls:
        console.print(usage_table(details.usage))
    if details.error:
        print_line(console, details.error, style="red")


def _show_trace(console: Console, run: Run, *, prompts: bool) -> None:
    """Print the sub-queries of each round with their searches and reports. `prompts`: whether to
    print the prompts and outputs of all models, too.
    """
    result = run.result
    executions: Sequence[Execution] = getattr(result, "executions", ())
    if isinstance(result, Execution):
        executions = (result,)
    rounds: Sequence[int] = getattr(result, "rounds", ())
    starts = {sum(rounds[:number]): number + 1 for number in range(len(rounds))}
    for index, execution in enumerate(executions):
        if index in starts:
            print_line(console, f"round {starts[index]}")
        _show_execution(console, execution, str(index + 1), prompts=prompts)
    if not prompts:
        return
    if isinstance(result, Conversation):
        _show_call(console, result, 0)
    if delegation := getattr(result, "delegation", None):
        print_line(console, "delegation")
        _show_messages(console, delegation, 2)
    if answering := getattr(result, "answering", None):
        print_line(console, "answer")
        _show_call(console, answering, 2)


def _show_execution(
    console: Console,
    execution: Execution,
    number: str,
    *,
    prompts: bool,
) -> None:
    """Print an execution (the work on one sub-query): its result, searches and evidence. If a
    manager passed the sub-query on to a second manager, the execution of the first manager is
    printed first. Executions of a manager's workers are printed below the manager's own execution.
    `number`: number to print before the sub-query, such as "2.1".
    """
    report = execution.report
    if execution.before:
        _show_execution(console, execution.before, number, prompts=prompts)

    result = execution.outcome.replace("_", " ") if execution.failed else report.answer
    manager = f" ({execution.manager})" if execution.manager else ""
    print_line(
        console, f"{number}. {' '.join(execution.sub_query.split())} → {result}{manager}", 2, "bold"
    )
    workers = execution.work.executions if execution.work else ()
    for worker_number, worker in enumerate(workers, 1):
        _show_execution(console, worker, f"{number}.{worker_number}", prompts=prompts)

    for search in execution.searches:
        action = "searched"
        titles = ", ".join(passage.title for passage in search.shown) or "nothing found"
        if isinstance(call := search.call, ToolCall):
            action = f"called {call.server} in {call.duration_s:.1f} s"
            titles = call.error or titles
        print_line(console, f"{action} “{search.query}”: {titles}", 5)
    for point, citations in zip(report.evidence, execution.citations(report.evidence), strict=True):
        places = ", ".join(citation.passage_id for citation in citations)
        print_line(console, f"“{point}” ({places or 'in no passage'})", 5, "cyan")
    if prompts:
        delegation = execution.work.delegation if execution.work else None
        _show_messages(console, delegation or execution.conversation, 5)


def _show_messages(console: Console, conversation: Conversation, indent: int) -> None:
    """Print the messages of a conversation, including the model's own turns."""
    for message in conversation.messages:
        print_line(console, f"[{message.role}] {message.content}", indent, "dim")


def _show_call(console: Console, conversation: Conversation, indent: int) -> None:
    """Print the messages of a conversation that consists of a single model call, and the call's
    output.
    """
    _show_messages(console, conversation, indent)
    for output in conversation.outputs:
        print_line(console, f"[assistant] {output.text}", indent, "dim")


def _watch(client: Client, options: WatchOptions) -> None:
    """Show the events of a run for a question or a table, while it runs or after it has ended."""
    events = client.watch(options.run_id, options.after)
    _follow(client, events, options, is_table=_is_table(client, options))


def _resume(client: Client, options: ResumeOptions) -> None:
    """Resume a question or a table whose gateway stopped or was killed during the run.

    A new run starts, which reuses the completed model calls and searches of the interrupted run.
    The interrupted run must be at most an hour old, and its gateway must be running again. The
    tokens and dollars that the interrupted run spent count against the limits of the new run.
    """
    is_table = _is_table(client, options)
    if is_table:
        events: Stream[Any] = client.stream_table(
            "",
            (),
            (),
            options.timeout,
            resume_run_id=options.run_id,
        )
    else:
        events = client.stream("", options.timeout, resume_run_id=options.run_id)
    _follow(client, events, options, is_table=is_table)


def _is_table(client: Client, options: RunOptions) -> bool:
    return client.run(options.run_id).run.kind == pb.RUN_KIND_TABLE


def _follow(
    client: Client,
    events: Stream[Any],
    options: JSONRunOptions,
    *,
    is_table: bool,
) -> None:
    """Show the events of a run until it ends, then its result. `is_table`: True if the run fills a
    table, False if it answers a question.
    """
    progress = Console(stderr=True, quiet=options.json)
    kind = TableView if is_table else AnswerView
    view = kind(Console(), progress, stream=True, as_json=options.json)
    result = view.follow(events)
    view.show(client.with_all_rows(result) if is_table else result)


def _cancel(client: Client, options: RunOptions) -> None:
    """Stop a run; a run that has already ended is not changed."""
    if client.run(options.run_id).run.status == pb.RUN_STATUS_RUNNING:
        client.cancel(options.run_id)
        print(f"run {options.run_id} is being stopped")
    else:
        print(f"run {options.run_id} has ended already")


def _feedback(client: Client, options: FeedbackOptions) -> None:
    """Rate an answer, and store the feedback with its run."""
    rated = options.right or options.wrong or options.score is not None
    if not (rated or options.right_answer or options.comment):
        raise BadRequest(
            "the feedback is empty; give --right, --wrong, --score, --right-answer or --comment."
        )
    name = client.feedback(
        options.run_id,
        accepted=options.right if options.right or options.wrong else None,
        score=options.score,
        right_answer=options.right_answer,
        comment=options.comment,
    )
    print(f"stored as {name}")
