"""Tables, from rollouts to rows: reports of executors are judged ask by ask."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from executor_sft.dataset import ServedTokens, read_rows, read_samples, rows_of
from executor_sft.evaluate import TableEvaluation
from executor_sft.filter import FilteredSample, filtered
from executor_sft.miniworld.export import export_tables
from executor_sft.miniworld.wide import Knobs, WideWorld
from executor_sft.questions import HeldOut, Question, TableReports, read_questions
from executor_sft.rollout import Rollout, RolloutWorker
from executor_sft.step import read_manifest
from router.calls import Role
from router.edge.grpc.server import Server
from router.errors import BadConfig, OutOfTime, UpstreamRefused, UpstreamUnavailable
from router.models import Completion, Message, Prompt, Sampling
from router.search import Answerer, Delegator, Executor, FactorizedSearch
from router.search.agent import Agent, ExecutorLimits
from router.store import Database
from router.table import TableLimits, TableRequest, WideSearch
from router.table.filling import EXECUTOR_OF_TABLES, TABLE_FORM
from router.table.table_delegation import STOP
from router.trace import Conversation, Execution, RoleName
from router.trace.table import Ask, Schema
from router.trace.values import TableRun
from serving.config.file import preset
from serving.retrieval.services import RetrievalServicer
from tests.conftest import Rolegate
from tests.executor_sft.traces import MINI, write_lines
from tests.openai_server import says, serving
from tests.router.deployment import lasting
from tests.router.store.stored import put, run
from tests.router.table.reports import SCHEMA, executed, fill
from tests.router.table.small_world import COLUMNS, QUESTION, Reader, World, lead, written
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import ScriptedModel

KROUROU = "Krurou: Krurou was founded in 1200 by Ana. It is old."
BEL = "Bel: Bel was founded in 900."
REGISTER = "Register: The cities of Vorland are Krurou and Bel."
ROWS = (("Krurou", "Ana", "1,200"), ("Bel", "", "900"))
ASKED = TableRequest("the cities of Vorland", SCHEMA.columns)


def discovery(number: int) -> Ask:
    """Return the text of a discovery in tables."""
    return Ask("discover", (), discovery=number)


FILLED = (
    (discovery(1), executed("Krurou\nBel", REGISTER)),
    (fill("krurou", "founder", "founded"), executed("founder: Ana\nfounded: 1200", KROUROU)),
    (fill("bel", "founder", "founded"), executed("founded: 900", BEL)),
)
FULL = preset("mini").parents[1] / "prompts" / "full"


def reports(rows: tuple[tuple[str, ...], ...], *more: tuple[Ask, Execution]) -> TableReports:
    """Return reports on a table filled with further asks; `rows` are the right rows."""
    asks, executions = zip(*FILLED, *more, strict=True)
    return TableReports(
        Question("q", "?", (), table=ASKED, rows=rows),
        TableRun(SCHEMA, asks=asks, executions=executions),
    )


@pytest.mark.parametrize(
    ("ask", "report", "by_gold", "without"),
    [
        (fill("krurou", "founded"), executed("1200", KROUROU), None, None),
        (
            fill("krurou", "founded"),
            executed("1200", BEL),
            "evidence in no passage",
            "evidence in no passage",
        ),
        (
            fill("krurou", "founded"),
            executed("1200", "Wars: One began in 1200."),
            None,
            "evidence in no passage",
        ),
        (fill("krurou", "founded"), executed("900", BEL), "wrong answer", "evidence in no passage"),
        (
            fill("krurou", "founded"),
            executed("not found", KROUROU),
            "found nothing",
            "found nothing",
        ),
        (fill("bel", "founder"), executed("not found", BEL), None, "found nothing"),
        (
            fill("bel", "founder"),
            executed("Bo", "Bel: Bo founded Bel."),
            "wrong answer",
            "right answer not known",
        ),
        (fill("bel", "founder", "founded"), executed("founded: 900", BEL), None, "found nothing"),
        (
            fill("krurou", "founder", "founded"),
            executed("founder: Ana", KROUROU),
            "found nothing",
            "found nothing",
        ),
        (discovery(2), executed("Bel", REGISTER), None, None),
        (
            discovery(2),
            executed("Bel\nTal", f"{REGISTER} Tal is not."),
            "wrong answer",
            "right answer not known",
        ),
        (
            discovery(2),
            executed("Bel", KROUROU),
            "evidence in no passage",
            "evidence in no passage",
        ),
        (discovery(2), executed("not found", REGISTER), "found nothing", "found nothing"),
    ],
)
def test_a_report_is_judged_by_its_own_ask(
    ask: Ask, report: Execution, by_gold: str | None, without: str | None
) -> None:
    """All its values are right and in a passage.

    With the right rows, a cell may be empty; without them, each has to be stated.
    """
    assert reports(ROWS).flaw(ask, report) == by_gold
    assert reports(()).flaw(ask, report) == without


def test_without_right_rows_reports_have_to_agree() -> None:
    """A cell in conflict teaches nothing, a row under another name is the same row, and a row
    beyond the right rows is judged without them.
    """
    rival = executed("founder: Bo", "Annals: Krurou was founded by Bo.")
    ana = fill("krurou", "founder"), executed("Ana", KROUROU)
    assert reports(()).flaw(*ana) is None
    assert (
        reports((), (fill("krurou", "founder", attempt=2), rival)).flaw(*ana)
        == "right answer not known"
    )
    assert reports(ROWS, (fill("krurou", "founder", attempt=2), rival)).flaw(*ana) is None
    old = (
        discovery(2),
        executed(
            "Old Krurou",
            "Old Krurou: Old Krurou is the former name of Krurou.",
            "Annals: Krurou was once called Old Krurou.",
        ),
    )
    assert reports(ROWS, old).flaw(*old) is None
    assert reports(ROWS[:1]).flaw(*FILLED[2]) == "found nothing"
    assert reports(ROWS[:1]).flaw(fill("bel", "founded"), FILLED[2][1]) is None


@pytest.mark.parametrize(("rows", "right"), [(ROWS, True), (ROWS[:1], False), ((), None)])
def test_a_table_is_right_with_exactly_the_right_rows(
    rows: tuple[tuple[str, ...], ...], right: bool | None
) -> None:
    """Form and order do not matter."""
    assert reports(rows).right is right


def question(world: World, *, known: bool = True) -> Question:
    """Return the question for all cities of a world."""
    return Question(
        "t1",
        QUESTION,
        (),
        "cities",
        table=TableRequest(QUESTION, COLUMNS),
        rows=tuple(world.rows() * known),
    )


class SearchesTwice(Reader):
    """A model that searches for the founder of each third city once without success."""

    def _write(self, prompt: Prompt) -> Any:
        user_text = prompt.messages[1].content
        if len(prompt.messages) == 2 and self._needs_two(user_text):
            return "<search>nothing of it</search>"
        if len(prompt.messages) == 4 and self._needs_two(user_text):
            no_searches_left = "No searches are left" in prompt.messages[-1].content
            return written("not found") if no_searches_left else f"<search>{user_text}</search>"
        return super()._write(prompt)

    def _needs_two(self, user_text: str) -> bool:
        return "Who" in user_text and sum(map(ord, user_text)) % 3 == 0


def worker(
    world: World, teacher: ScriptedModel, student: ScriptedModel, **limits: Any
) -> RolloutWorker:
    """Return a worker with scripted models over a world."""

    def role(name: RoleName, model: ScriptedModel) -> Role:
        return Role(name, model, name, Sampling(max_tokens=256), attempts=1, streams=False)

    def executor(model: ScriptedModel, searches: int = 2) -> Executor:
        own = role("execution", model)
        executor_limits = ExecutorLimits(max_searches=searches)
        tabular = Agent(
            replace(own, system="tables"), Unfiltered(world), executor_limits, EXECUTOR_OF_TABLES
        )
        return Executor(own, Unfiltered(world), executor_limits, forms={TABLE_FORM: tabular})

    leads = role("delegation", lead(world))
    answers = role("answer", ScriptedModel([]))
    search = FactorizedSearch(Delegator(leads), executor(teacher), Answerer(answers))
    wide = WideSearch(
        Delegator(leads, 20, STOP), executor(teacher), TableLimits(cells_per_ask=1, **limits)
    )
    return RolloutWorker(search, executor(student), [executor(teacher, 1)] * 2, None, lasting, wide)


async def test_a_table_is_rolled_out() -> None:
    """The teacher fills it, and the student works on each ask.

    The teacher repeats asks for which it made two searches with one.
    """
    world = World(12)
    table_question = question(world)
    rollout = await worker(world, SearchesTwice(), Reader(invents=0.5)).roll_out(table_question)
    assert isinstance(rollout.trajectory, TableRun)
    assert len(rollout.sub_queries) == len(rollout.trajectory.asks) == 3 + 12 * 2
    assert rollout.verdict.correct
    for work in rollout.sub_queries:
        assert work.teacher.verdict.correct
        assert len(work.capped) == (2 if len(work.teacher.execution.searches) == 2 else 0)
        assert {worked.execution.sub_query for worked in (work.student, *work.capped)} <= {
            work.teacher.execution.sub_query
        }
        assert {
            worked.execution.conversation.messages[0].content
            for worked in (work.teacher, work.student)
        } == {"tables"}
    assert msgspec.json.decode(msgspec.json.encode(rollout), type=Rollout) == rollout

    samples, rejected = filtered([rollout], {})
    multi = sum(len(work.teacher.execution.searches) == 2 for work in rollout.sub_queries)
    strata = Counter(sample.stratum for sample in samples)
    assert (strata["teacher_multi"], strata["teacher_single"]) == (multi, 27 - multi)
    assert (
        0
        < rejected["evidence in no passage"] + rejected["wrong answer"]
        == 27 - strata["student_single"]
    )
    assert {(sample.question_id, sample.source) for sample in samples} == {("t1", "cities")}
    assert Counter(sample.ask.kind for sample in samples if sample.ask)["discover"] == 6


async def test_without_known_rows_stated_values_are_learnt() -> None:
    """An invented value is in no passage, and a value that was not found may exist."""
    world = World(8, unstated=2)
    rollout = await worker(world, Reader(), Reader(invents=0.5)).roll_out(
        question(world, known=False)
    )
    assert rollout.verdict.exact_match is None
    known, _ = filtered([msgspec.structs.replace(rollout, question=question(world))], {})
    samples, rejected = filtered([rollout], {})
    assert [sample for sample in known if sample in samples] == samples
    assert rejected["found nothing"] >= 2
    for sample in samples:
        if sample.ask and sample.ask.row:
            (gold,) = (row for row in world.rows() if row[0].casefold() == sample.ask.row[0])
            assert sample.execution.report.answer in gold


async def test_held_out_tables_and_asks_are_not_learnt() -> None:
    """They are compared by question and by any sub-query; a question of an answer is no duplicate
    of a table's.
    """
    world = World(4)
    rollout = await worker(world, Reader(), Reader()).roll_out(question(world))
    sub_query = rollout.sub_queries[-1].teacher.execution.sub_query
    for held_out, reason in (
        (QUESTION.upper(), "held out: same question"),
        (sub_query, "held out: as a sub-query"),
    ):
        assert filtered([rollout], {}, held_out=HeldOut([held_out])) == (
            [],
            {reason: 2 * len(rollout.sub_queries)},
        )
    samples, rejected = filtered([rollout, rollout], {})
    assert len(samples) == rejected["duplicate sub-query"] == 2 * len(rollout.sub_queries)


async def test_a_failed_executor_loses_its_own_work_only() -> None:
    """It may be teacher or student; nothing is learnt from it."""
    world = World(12)
    rollout = await worker(world, Reader(fails=0.2), Reader(seed=1, fails=0.2)).roll_out(
        question(world)
    )
    executions = [
        worked.execution for work in rollout.sub_queries for worked in (work.teacher, work.student)
    ]
    failed = sum(execution.failed for execution in executions)
    samples, rejected = filtered([rollout], {})
    assert rejected["an upstream failed"] == failed > 2
    assert len(samples) > len(executions) / 2
    assert not any(sample.execution.failed for sample in samples)


async def test_nothing_is_rolled_out_without_any_work_of_an_executor() -> None:
    """This also holds if an endpoint is down, time is up, or the delegator fails later."""
    world = World(4)
    for teacher, student in ((Reader(fails=1.0), Reader()), (Reader(), Reader(fails=1.0))):
        with pytest.raises(UpstreamRefused):
            await worker(world, teacher, student).roll_out(question(world))
    unavailable = UpstreamUnavailable("connection refused", endpoint="http://127.0.0.1:9/v1")
    with pytest.raises(UpstreamUnavailable):
        await worker(world, Reader(), ScriptedModel(lambda _prompt: unavailable)).roll_out(
            question(world)
        )
    with pytest.raises(OutOfTime):
        await worker(world, Reader(), Reader(), timeout_s=1e-6).roll_out(question(world))


Play = Callable[[web.Request, str, Prompt], Awaitable[web.StreamResponse]]
"""Answers a request of a model, given its name and the prompt."""


def playing(world: World, **more: ScriptedModel) -> Play:
    """Return the answers of models over a world."""
    usual = {"backbone": lead(world), "teacher": SearchesTwice(), "student": Reader(invents=0.3)}
    models = {**usual, **more}

    async def play(request: web.Request, model: str, prompt: Prompt) -> web.StreamResponse:
        text = (await models[model].complete(prompt)).text
        if b'"logprobs"' not in await request.read():
            return await says(text)(request)
        tokens = {"token_ids": [3], "logprobs": {"content": [{"logprob": -0.5}]}}
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop", **tokens}
        return web.json_response({"choices": [choice], "prompt_token_ids": [1, 2]})

    return play


@asynccontextmanager
async def served(folder: Path, world: World, answer: Play | None = None) -> AsyncIterator[Path]:
    """A config whose models play these over a world."""
    answer = answer or playing(world)

    async def play(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        messages = tuple(
            Message(message["role"], message["content"]) for message in body["messages"]
        )
        return await answer(
            request, body["model"], Prompt(messages, Sampling(seed=body.get("seed")))
        )

    roles = {"delegation": "backbone", "execution": "student", "answer": "backbone"}
    tables = {f"roles.{name}": (model, name) for name, model in roles.items()}
    tables["distillation.teacher"] = ("teacher", "execution")
    tables["synthesis"] = ("writer", "synthesis")
    async with serving(recording=False) as openai_server:
        openai_server.plays(play)
        server = Server(None, RetrievalServicer(Unfiltered(world)))
        port = await server.start("127.0.0.1:0")
        parts = [
            f'[{table}]\nmodel = "{model}"\nprompt = '
            f'"shipped:prompts/full/{prompt}.txt"\nattempts = 1\n'
            f'base_url = "{openai_server.base_url}"\n'
            for table, (model, prompt) in tables.items()
        ]
        parts += ["[table]\ncells_per_ask = 1\n", f'[retrieval]\naddress = "127.0.0.1:{port}"\n']
        file = folder / "config.toml"
        file.write_text("\n".join(['[server]\nstore = "sqlite:///runs.db"\n', *parts]), "utf-8")
        yield file
        await server.drain(0)


async def step(rolegate: Rolegate, *arguments: object) -> str:
    """Run a step alongside this process's servers, and return its output."""
    ended = await asyncio.to_thread(rolegate, "sft", *arguments)
    assert ended.status == 0, ended.out + ended.err
    return ended.out + ended.err


async def test_tables_from_a_file_become_rows(rolegate: Rolegate, tmp_path: Path) -> None:
    """They are rolled out, filtered and written with the prompt for tables, in one file with
    questions.
    """
    world = World(6)
    table_questions = {
        "id": "t1",
        "question": QUESTION,
        "columns": COLUMNS,
        "rows": world.rows(),
        "source": "cities",
    }
    listed = write_lines(tmp_path / "questions.jsonl", [table_questions])
    async with served(tmp_path, world) as config:
        out = tmp_path / "out"
        await step(rolegate, "rollout", "--questions", listed, "--config", config, "--out", out)
    figures = read_manifest(out).figures
    assert (figures["questions"], figures["exact_match"]) == (1, 1.0)
    assert figures["executors"]["teacher"]["invocations"] == 2 + 6 * 2
    await step(rolegate, "filter", out, "--out", tmp_path / "kept")
    assert read_manifest(tmp_path / "kept").figures["sources"]["cities"]["questions"] == 1
    await step(
        rolegate,
        "dataset",
        tmp_path / "kept",
        "--model",
        MINI,
        "--out",
        tmp_path / "data",
    )
    rows = read_rows(tmp_path / "data" / "rows.jsonl")
    samples = list(read_samples(tmp_path / "kept"))
    assert rows == rows_of(samples, ServedTokens(MINI))[0]
    assert {(row.question_id, row.stratum) for row in rows} == {
        ("t1", sample.stratum) for sample in samples
    }
    system = (FULL / "table_execution.txt").read_text("utf-8").strip()
    assert {row.messages[0]["content"] for row in rows} == {system}
    learnt = Counter(row.trajectory for row in rows)
    assert [learnt[position] for position in range(len(samples))] == [
        len(sample.execution.searches) + 1 for sample in samples
    ]
    assert {"Who", "When", "Which"} <= {str(row.messages[1]["content"]).split()[0] for row in rows}


async def test_executors_are_compared_on_tables(rolegate: Rolegate, tmp_path: Path) -> None:
    """The student invents values, the teacher does not; two tables of one world are one group."""
    world = World(6)
    line = {"question": QUESTION, "columns": COLUMNS, "rows": world.rows()}
    lines = [
        {"id": "t1", **line, "group": "a"},
        {"id": "t2", **line, "question": f"{QUESTION} Hurry.", "group": "a"},
        {"id": "t3", **line, "question": f"{QUESTION} Please."},
    ]
    listed = write_lines(tmp_path / "tables.jsonl", lines)
    out = tmp_path / "out"
    async with served(tmp_path, world) as config:
        given = ("--questions", listed, "--config", config, "--out", out, "--rollouts", 1)
        await step(rolegate, "evaluate", *given, "--executors", "base", "teacher")
    evaluation = msgspec.json.decode((out / "evaluation.json").read_bytes(), type=TableEvaluation)
    assert (evaluation.tables, evaluation.groups) == (3, 2)
    student, teacher = evaluation.rows.values()
    assert (teacher.item_f1, teacher.row_f1, teacher.success) == (1, 1, 1)
    assert teacher.sub_agents == 2 + 6 * 2
    assert student.row_f1 < student.item_f1 < 1
    difference = evaluation.comparisons["teacher"]
    assert difference.item_f1.mean == pytest.approx(1 - student.item_f1)
    assert difference.item_f1.low <= difference.item_f1.mean <= difference.item_f1.high
    assert difference.tokens.mean == pytest.approx(teacher.tokens - student.tokens)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([{"question": QUESTION, "columns": COLUMNS}], "tables.jsonl:1: no right rows are given"),
        (
            [
                {"question": QUESTION, "columns": COLUMNS, "rows": [["Bel", "", "900"]]},
                {"question": "Who founded Bel?", "answer": "Bo"},
            ],
            "has questions and tables; write them to two files",
        ),
    ],
)
def test_tables_that_cannot_be_scored_are_refused(
    rolegate: Rolegate, lines: list[dict[str, Any]], why: str, tmp_path: Path
) -> None:
    listed = write_lines(tmp_path / "tables.jsonl", lines)
    (tmp_path / "config.toml").write_text(
        "".join(
            f'[roles.{role}]\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
            f'prompt = "shipped:prompts/full/{role}.txt"\n'
            for role in ("delegation", "execution", "answer")
        )
        + '[retrieval]\naddress = "127.0.0.1:9"\n'
    )
    given = ("--questions", listed, "--config", tmp_path / "config.toml", "--out", tmp_path / "out")
    ended = rolegate("sft", "evaluate", *given)
    assert ended.status == 1
    assert why in ended.err
    assert not (tmp_path / "out").exists()  # the folder can be used with a corrected file


async def test_groups_of_tables_have_their_item_f1(rolegate: Rolegate, tmp_path: Path) -> None:
    """Each agent has a line in trajectories.jsonl, and is weighed. Of a table, no best run is
    filtered.
    """
    world = World(3)
    row = {
        "id": "t1",
        "question": QUESTION,
        "columns": COLUMNS,
        "rows": [*world.rows(), ("X",) * 3],
    }
    listed = write_lines(tmp_path / "questions.jsonl", [row])
    out = tmp_path / "out"
    async with served(tmp_path, world) as config:
        options = ("--questions", listed, "--config", config, "--group", 2, "--out", out)
        await step(rolegate, "rollout", *options)
    figures = read_manifest(out).figures
    assert 0 < figures["item_f1"] < 1
    lines = [json.loads(line) for line in (out / "trajectories.jsonl").read_text().splitlines()]
    assert {line["run_id"] for line in lines} == {"t1/0", "t1/1"}
    assert {line["reward"]["item_f1"] for line in lines} == {figures["item_f1"]}
    assert {line["role"] for line in lines} == {"delegation", "execution"}

    sequences = tmp_path / "sequences.jsonl"
    weighed = await step(rolegate, "weigh", out, "--out", sequences, "--json")
    rows = [json.loads(line) for line in sequences.read_text().splitlines()]
    assert {row["question_id"] for row in rows} == {"t1"}
    assert '"mixed_groups": 0.0' in weighed
    shares = {
        role: sum(sum(row["shares"]) for row in rows if row["role"] == role) for role in ROLES
    }
    assert shares == {"delegation": pytest.approx(0.5), "execution": pytest.approx(0.5)}
    filtering = ("filter", out, "--best", "--out", tmp_path / "best")
    assert "t1 asks for a table" in rolegate("sft", *filtering).err


ROLES = ("delegation", "execution")


@pytest.mark.parametrize("tabular", [True, False])
def test_a_report_without_evidence_is_learnt_in_tables_only(tabular: bool) -> None:
    """Tables read such reports; elsewhere they are corrected."""
    listed = "<answer>Krurou\nBel</answer>"
    completions = [Completion("<search>cities</search>", "stop"), Completion(listed, "stop")]
    messages = [
        Message("user", "Which?"),
        Message("assistant", completions[0].text),
        Message("user", "<documents></documents>"),
    ]
    talk = Conversation((*messages, Message("assistant", listed)), tuple(completions))
    work = msgspec.structs.replace(executed("Krurou\nBel", REGISTER), conversation=talk)
    sample = FilteredSample("teacher_single", "t1", "", work, discovery(1) if tabular else None)
    assert rows_of([sample], ServedTokens(MINI))[1] == {
        "search": 1,
        "report" if tabular else "malformed": 1,
    }


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"columns": [{"name": "city"}]}, "no key column given"),
        (
            {"columns": [{"name": "city", "key": True}], "rows": [["Bel", "Bo"]]},
            r"rows\[0\]: must have 1 values",
        ),
        ({}, "no right answer"),
    ],
)
def test_an_impossible_table_is_named_with_file_and_line(
    line: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """Other steps take questions of answers only."""
    path = write_lines(tmp_path / "tables.jsonl", [{"question": QUESTION, **line}])
    with pytest.raises(BadConfig, match=rf"tables\.jsonl:1: .*{why}"):
        read_questions(path, tables=True)
    write_lines(path, [{"question": QUESTION, "columns": COLUMNS}])
    with pytest.raises(BadConfig, match="no right answer"):
        read_questions(path)


def test_the_tables_of_a_mini_world_can_be_rolled_out(tmp_path: Path) -> None:
    """They have the columns that the lead was taught, and their gold."""
    wide = WideWorld(21, "test", Knobs(), tasks=2)
    export_tables(wide, tmp_path)
    read, duplicates = read_questions(tmp_path / "questions.jsonl", tables=True)
    assert ([table_question.id for table_question in read], duplicates) == (
        [task.id for task in wide.tasks],
        0,
    )
    for table_question, task in zip(read, wide.tasks, strict=True):
        assert table_question.table == TableRequest(task.question, task.schema.columns)
        assert table_question.rows == tuple(
            (row.mention, *(wide.gold(row, relation) for relation in task.relations))
            for row in task.rows
        )


async def test_logged_tables_are_rolled_out_again(rolegate: Rolegate, tmp_path: Path) -> None:
    """The given columns and rows are kept, and ratings do not matter; tables without result are
    left out.
    """
    world = World(4)
    given_rows = tuple((city, "", "") for city in world.cities[:2])
    asks = (fill("kruaa", "founder"), fill("kruba", "founder"))
    closed = TableRun(
        Schema(COLUMNS), given_rows, asks, tuple(executed("Ana", KROUROU) for _ in asks)
    )
    execution = msgspec.structs.replace(FILLED[0][1], sub_query="Which cities?")
    logged = {
        "closed": closed,
        "open": TableRun(Schema(COLUMNS), (), (discovery(1),), (execution,)),
    }
    logged["empty"] = TableRun(Schema(COLUMNS), outcome="out_of_scope")
    database = await Database.open(f"sqlite:///{tmp_path / 'runs.db'}")
    runs = [
        run(
            name,
            float(offset),
            kind="table",
            request=f"{name}: {QUESTION}",
            result=result,
            events=(),
        )
        for offset, (name, result) in enumerate(logged.items())
    ]
    await put(
        database, *runs, run("failed", 9.0, kind="table", result=None, status="failed", events=())
    )
    await database.close()
    async with served(tmp_path, world) as config:
        await step(rolegate, "mine", "--config", config, "--out", tmp_path / "out", "--yes")
    counts = read_manifest(tmp_path / "out").figures["selection"]
    assert (counts["read"], counts["selected"]) == (2, 2)
    lines = (tmp_path / "out" / "rollouts.jsonl").read_bytes().splitlines()
    first, second = (msgspec.json.decode(line, type=Rollout) for line in lines)
    assert first.question.table == TableRequest(f"open: {QUESTION}", COLUMNS, max_rows=2000)
    assert second.question.table == TableRequest(
        f"closed: {QUESTION}", COLUMNS, given_rows, closed=True, max_rows=2000
    )
    assert isinstance(second.trajectory, TableRun)
    assert {ask.kind for ask in second.trajectory.asks} == {"fill"}
    await step(rolegate, "filter", tmp_path / "out", "--out", tmp_path / "kept")
    # which asks for the same, and for more
    assert {sample.question_id for sample in read_samples(tmp_path / "kept")} == {"open"}
