"""`rolegate sft mine`: roll out logged questions again, with the teacher as executor.

Reads the config's store: runs of kind answer, failures included, but none of tenants that have opted out and none whose
texts were not kept. Which answers are right is known from clients' feedback (a right answer, or an answer that they
liked), or from the judge. Prints what that would take and asks; then it does what `rolegate sft rollout` does.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from executor_sft.questions import normal_question, read_texts
from executor_sft.rollout import add_common, rolled_out, settings_of
from executor_sft.rollouts import Question, teacher_of
from executor_sft.step import Step
from router.errors import BadConfig, BadRequest, NotFound, StoreFailed
from router.models.model import Usage
from router.runs.archive import Archive, RunFilter
from router.store.archive import SQLArchive
from router.trace.call import Call, Price, RoleName, totals
from router.trace.run import Feedback, Run
from router.trace.values import NOT_FOUND, Trajectory
from serving.cli.options import FORMATS, chosen_config, moment
from serving.cli.store import opened_store
from serving.config.config import Config
from serving.config.prices import price_of
from serving.files import write_atomically
from serving.logs import errors_only

_PAGE = 100
SOURCE = "logged"


class Counts(msgspec.Struct):
    """What was read, and what became of it."""

    read: int = 0
    """Runs that have ended, of kind answer, of tenants that let their runs train."""
    redacted: int = 0
    """Their texts were not kept."""
    unreadable: int = 0
    """Their traces are damaged, or written by another release."""
    evaluation: int = 0
    """Questions that must not be trained on."""
    right_answer_unknown: int = 0
    """No feedback tells the right answer, and there is no judge."""
    same_question: int = 0
    same_sub_queries: int = 0
    over_limit: int = 0
    selected: int = 0


class Selection(msgspec.Struct, frozen=True):
    """What `mine` rolls out; kept in its folder, as the store goes on changing."""

    questions: list[Question]
    """Each with the id of its run."""
    counts: Counts


async def select(
    log: Archive, wanted: RunFilter, evaluation: Collection[str], *, judge: bool, limit: int | None = None
) -> tuple[Selection, list[Call], list[Usage]]:
    """The logged questions that can be rolled out again, newest first (of those that are the same, the newest), the
    calls of their runs, and what other runs spent on reports that these used.

    `wanted` leaves out tenants that have opted out. `evaluation`: normalised questions to leave out. `judge`: whether
    somebody can tell right answers that no feedback tells. Raises `StoreFailed`.
    """
    counts, chosen, calls, shared = Counts(), list[Question](), list[Call](), list[Usage]()
    asked: set[str] = set()
    worked_on: set[frozenset[str]] = set()
    async for run in _ended(log, wanted, counts):
        normal, sub_queries = normal_question(run.request), _sub_queries(run)
        if run.redacted:
            counts.redacted += 1
        elif normal in evaluation:
            counts.evaluation += 1
        elif not (question := question_of(run, await log.feedback(run.id))).golds and not judge:
            counts.right_answer_unknown += 1
        elif normal in asked:
            counts.same_question += 1
        elif sub_queries and sub_queries in worked_on:
            counts.same_sub_queries += 1
        else:
            asked.add(normal)
            worked_on.add(sub_queries)
            if limit is not None and len(chosen) >= limit:
                counts.over_limit += 1
            else:
                chosen.append(question)
                calls += run.calls
                shared += _shared(run)
    counts.selected = len(chosen)
    return Selection(chosen, counts), calls, shared


def question_of(run: Run, feedback: Sequence[Feedback]) -> Question:
    """The run's question with what clients said: their right answers, and the run's own if the last of them who told
    liked it; otherwise that one is known to be wrong. Who likes an honest refusal has not told what would be right.
    """
    result = run.result
    answer = result.answer if isinstance(result, Trajectory) and result.outcome != "out_of_scope" else ""
    if answer == NOT_FOUND:
        answer = ""
    golds = [said.gold_answer for said in feedback if said.gold_answer.strip()]
    verdicts = [said.good for said in feedback if said.good is not None]
    liked = verdicts[-1] if verdicts and answer else None
    if liked:
        golds.append(answer)
    rejected = (answer,) if liked is False else ()
    return Question(run.id, run.request, tuple(dict.fromkeys(golds)), SOURCE, rejected)


async def _ended(log: Archive, wanted: RunFilter, counts: Counts) -> AsyncIterator[Run]:
    """The runs that have ended and can be read."""
    page = ""
    while True:
        listed = await log.list(wanted, _PAGE, page)
        for summary in listed.runs:
            if summary.status == "running":
                continue
            try:
                run = await log.load(summary.id)
            except NotFound:
                continue  # deleted meanwhile
            except StoreFailed as error:
                if not isinstance(error.__cause__, msgspec.DecodeError):
                    raise
                counts.read, counts.unreadable = counts.read + 1, counts.unreadable + 1
                continue
            counts.read += 1
            yield run
        if not (page := listed.next_page):
            return


def _shared(run: Run) -> list[Usage]:
    """What its executors' turns took where they were another run's; where only the first ones were, all of them."""
    executions = run.result.executions if isinstance(run.result, Trajectory) else ()
    outputs = [output for execution in executions if execution.shared_from for output in execution.conversation.outputs]
    return [output.usage for output in outputs if output.usage is not None]


def _sub_queries(run: Run) -> frozenset[str]:
    executions = run.result.executions if isinstance(run.result, Trajectory) else ()
    return frozenset(normal_question(execution.sub_query) for execution in executions)


_CAPPED_SHARE = 0.4
"""Of a teacher's executor runs that search twice, and may be repeated with one search (TBSS Table 4)."""
_LED_SHARE = 1.0
"""Of the backbone's and the answerer's work, done again where other reports lead to other ends."""
_TIMES: Mapping[str, tuple[RoleName, float]] = {
    "delegation": ("delegation", 1 + _LED_SHARE),
    "teacher": ("execution", 1 + _CAPPED_SHARE),
    "student": ("execution", 1),
    "answer": ("answer", 1 + _LED_SHARE),
}
"""Whose tokens each of them is expected to need, and how many times."""
_EVALUATED = "delegation", "student", "answer"


class Share(msgspec.Struct, frozen=True):
    """What one of them is expected to need for all questions."""

    name: str
    prompt_tokens: int
    completion_tokens: int
    dollars: float | None
    """None where the price is not known."""


def estimate(
    calls: Sequence[Call],
    prices: Mapping[str, Price | None],
    shared: Sequence[Usage] = (),
    evaluated: float = 0.0,
) -> list[Share]:
    """`calls`: of the logged runs; what is not known of them counts like the mean of the others. `prices`: of
    delegation, teacher, student and answer. `shared`: of the executors whose reports the runs had from others.
    `evaluated`: runs of an evaluation that follows, for each logged one. The judge, asked little, is left out.
    """
    spared = sum(usage.prompt_tokens for usage in shared), sum(usage.completion_tokens for usage in shared)
    needed: dict[RoleName, tuple[float, float]] = {"execution": spared}
    for total in totals(calls):
        known = total.attempts - total.attempts_without_usage
        scale = total.attempts / known if known else 0.0
        prompt_tokens, completion_tokens = needed.get(total.role, (0.0, 0.0))
        needed[total.role] = (
            prompt_tokens + scale * total.prompt_tokens,
            completion_tokens + scale * total.completion_tokens,
        )
    nothing = 0.0, 0.0
    shares = [_share(name, needed.get(role, nothing), times, prices[name]) for name, (role, times) in _TIMES.items()]
    if evaluated:
        runs = [_share(name, needed.get(_TIMES[name][0], nothing), evaluated, prices[name]) for name in _EVALUATED]
        shares.append(_sum("evaluation", runs))
    return shares


def estimate_table(shares: Sequence[Share]) -> Table:
    """A row for each, and their sum."""
    table = Table("role", title="What that would take, about", title_justify="left")
    for column in ("prompt tokens", "written", "dollars"):
        table.add_column(column, justify="right")
    for share in (*shares, _sum("all", shares)):
        dollars = "unknown" if share.dollars is None else f"{share.dollars:.4f}"
        table.add_row(share.name, f"{share.prompt_tokens:,}", f"{share.completion_tokens:,}", dollars)
    return table


def _sum(name: str, shares: Sequence[Share]) -> Share:
    known = [share.dollars for share in shares if share.dollars is not None]
    return Share(
        name,
        sum(share.prompt_tokens for share in shares),
        sum(share.completion_tokens for share in shares),
        sum(known) if len(known) == len(shares) else None,
    )


def _share(name: str, needed: tuple[float, float], times: float, price: Price | None) -> Share:
    prompt_tokens, completion_tokens = (round(times * tokens) for tokens in needed)
    dollars = None if price is None else price.cost(Usage(prompt_tokens, completion_tokens)) / 1e9
    return Share(name, prompt_tokens, completion_tokens, dollars)


SELECTION = "selection.json"


def main(arguments: Sequence[str]) -> int:
    """Run the step; the exit status, 1 where it was not agreed to."""
    parser = argparse.ArgumentParser(
        prog="rolegate sft mine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(parser)
    parser.add_argument("--since", metavar="TIME", help=FORMATS)
    parser.add_argument("--until", metavar="TIME", help="runs that started before")
    parser.add_argument("--tenant", metavar="NAME", help="one tenant's only")
    parser.add_argument(
        "--evaluation", type=Path, nargs="+", action="extend", default=[], metavar="FILE", help="questions to leave out"
    )
    parser.add_argument(
        "--then-evaluate",
        type=int,
        default=0,
        metavar="RUNS",
        help="runs of an evaluation that is to follow; the estimate counts them",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    given = parser.parse_args(arguments)
    errors_only()
    config = chosen_config(given)
    settings = settings_of(config, given) | {name: getattr(given, name) for name in ("since", "until", "tenant")}
    kept = given.out / SELECTION
    selection = None
    if not kept.exists():
        selection = asyncio.run(_selected(config, given))
        if selection is None:
            return 1
    step = Step.begin(given.out, "mine", {f"evaluation {path}": path for path in given.evaluation}, settings)
    if selection is not None:
        write_atomically(kept, msgspec.json.encode(selection))
    selection = _read(kept)
    return rolled_out(step, config, selection.questions, msgspec.to_builtins(selection.counts), given)


async def _selected(config: Config, given: argparse.Namespace) -> Selection | None:
    """What is to be rolled out; None where somebody does not want that. Raises `BadRequest` where nothing is there, or
    nobody to ask.
    """
    wanted = RunFilter(
        tenant=given.tenant,
        kind="answer",
        start=given.since and moment(given.since).timestamp(),
        end=given.until and moment(given.until).timestamp(),
        training=True,
    )
    evaluation, judge = read_texts(given.evaluation), config.distillation.judge is not None
    console = Console()
    async with opened_store(given) as database:
        archive = SQLArchive(database)
        with console.status("reading logged runs"):
            selection, calls, shared = await select(archive, wanted, evaluation, judge=judge, limit=given.limit)
    console.print(_counts_table(selection.counts))
    if selection.counts.unreadable:
        console.print("What cannot be read: `rolegate store check` names it; an older release may read it.")
    if not selection.questions:
        raise BadRequest("no logged question can be used; send feedback with right answers, or name a judge.")
    prices = await asyncio.to_thread(_prices, config)
    evaluated = given.then_evaluate / len(selection.questions)
    console.print(estimate_table(estimate(calls, prices, shared, evaluated)))
    return selection if given.yes or _agreed(len(selection.questions)) else None


def _agreed(questions: int) -> bool:
    """Ask at the terminal. Raises `BadRequest` where there is none."""
    if not sys.stdin.isatty():
        raise BadRequest("there is nobody to ask whether that may be spent; --yes says so.")
    return input(f"Roll out {questions} questions? [y/N] ").strip().casefold() in ("y", "yes")


def _prices(config: Config) -> dict[str, Price | None]:
    roles = config.roles
    named = {
        "delegation": roles.delegation,
        "teacher": teacher_of(config),
        "student": roles.execution,
        "answer": roles.answer,
    }
    return {name: price_of(role, config.prices) for name, role in named.items()}


def _counts_table(counts: Counts) -> Table:
    table = Table("logged runs")
    table.add_column("how many", justify="right")
    for name, count in msgspec.to_builtins(counts).items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    return table


def _read(path: Path) -> Selection:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Selection)
    except msgspec.DecodeError as error:
        raise BadConfig(f"{path}: {error}; begin in a new folder.") from None
