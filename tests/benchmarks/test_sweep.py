"""`rolegate bench sweep` with real servers: completed, killed and refused, and its rows."""

import asyncio
import csv
import json
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from benchmarks.study.plan import read_plan
from benchmarks.study.results import ADVICE, QuestionResult, read_study
from benchmarks.study.sweep import Sweep
from executor_sft.jsonl import JsonlFile, read_jsonl
from executor_sft.step import read_manifest
from router.errors import BadConfig
from router.models import Prompt
from serving.files import sha256_of
from tests.benchmarks.test_datasets import encrypted
from tests.conftest import Rolegate
from tests.executor_sft import test_rollout
from tests.executor_sft.test_rollout import QUESTIONS, Endpoint, Ran, started

endpoint = test_rollout.endpoint
rollout_config = test_rollout.config
CELLS = ["big + student", "big + teacher", "no_retrieval: big"]


def judges(prompt: Prompt) -> str:
    """Play the judge: it knows the homes, and its reply for F3 is undecided."""
    prompt_text = prompt.messages[1].content
    if "of F3 born" in prompt_text:
        return "Who knows?"
    film = prompt_text.split("director of ")[1].split(" ")[0]
    correct = f"<answer>home of Mann{film}" in prompt_text
    return f"<verdict>{'correct' if correct else 'incorrect'}</verdict>"


@pytest.fixture
async def sweep(rollout_config: Path, endpoint: Endpoint, tmp_path: Path) -> AsyncIterator[Path]:
    """A sweep whose servers are all running."""
    endpoint.models["judge"] = judges
    table = rollout_config.read_text("utf-8")
    url = table.split('base_url = "')[1].split('"')[0]
    place = f'base_url = "{url}"\n'
    judge = (
        '[distillation.judge]\nmodel = "judge"\nprompt = "shipped:prompts/full/judge.txt"\n'
        f"attempts = 1\n{place}"
    )
    prices = (
        "[prices]\nbackbone = { prompt = 1.0, completion = 2.0 }\nstudent = { prompt = 0.1, "
        "completion = 0.2 }\n"
    )
    rollout_config.write_text(f"{table}\n{judge}\n{prices}", "utf-8")
    rows = [
        {
            "id": question.id,
            "question": question.text,
            "answers": question.golds,
            "dataset": "films" if number else "first",
            "decomposition": [
                {"question": f"Who directed F{number}?", "answer": f"MannF{number}"},
                {"question": "Where was #1 born?", "answer": question.golds[0]},
            ],
        }
        for number, question in enumerate(QUESTIONS)
    ]
    (tmp_path / "questions.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows), "utf-8"
    )
    file = tmp_path / "sweep.toml"
    file.write_text(
        f"""config = "{rollout_config.name}"
questions = ["questions.jsonl"]
rollouts = 2
concurrency = 2
[models.student]
[models.big]
parameters = 1e9
[models.teacher]
settings = {{ model = "teacher", base_url = "{url}" }}
[[pairs]]
backbone = ["big"]
executor = ["student", "teacher"]
[[pairs]]
backbone = ["big"]
topology = "no_retrieval"
""",
        "utf-8",
    )
    yield file


@pytest.fixture
def ran(rolegate: Rolegate) -> Ran:
    """Run a command in a thread; return its exit status and its output."""

    async def run(*arguments: object) -> tuple[int, str]:
        ended = await asyncio.to_thread(rolegate, "bench", *arguments)
        return ended.status, ended.out + ended.err

    return run


def rows(folder: Path) -> list[QuestionResult]:
    """Return the rows without latencies, sorted."""
    untimed = (
        msgspec.structs.replace(row, latency_s=None)
        for row in read_jsonl(folder / "results.jsonl", QuestionResult, ADVICE)
    )
    return sorted(untimed, key=lambda row: (row.cell, row.question_id, row.rollout))


async def test_browsecomp_is_judged_in_the_form_of_its_authors(
    ran: Ran, sweep: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """The questions are encrypted. Accuracy and tokens are reported for each combination."""

    def lines(prompt: Prompt) -> str:
        correct = judges(prompt).removeprefix("<verdict>") == "correct</verdict>"
        return f"reasoning: none\ncorrect: {'yes' if correct else 'no'}\nconfidence: 100%"

    endpoint.models["judge"] = lines
    with (tmp_path / "browsecomp.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["problem", "answer", "canary"])
        for question in QUESTIONS:
            texts = (question.text, question.golds[0])
            table.writerow([*(encrypted(text, "canary") for text in texts), "canary"])
    plan = sweep.read_text("utf-8")
    plan = plan.replace("questions.jsonl", "browsecomp.csv").replace("rollouts = 2", "rollouts = 1")
    sweep.write_text(plan, "utf-8")
    status, output = await ran("sweep", "--config", sweep, "--out", tmp_path / "out")
    assert status == 0, output
    sweep_rows = rows(tmp_path / "out")
    assert {row.dataset for row in sweep_rows} == {"browsecomp"}
    taught = [row for row in sweep_rows if row.executor == "teacher"]
    assert len(taught) == len(QUESTIONS)
    assert sum(row.accepted is True for row in taught) == len(QUESTIONS) - 1
    assert {spent.role for row in taught for spent in row.spent} == {
        "delegation",
        "execution",
        "answer",
    }


async def test_every_pair_answers_every_question(
    ran: Ran, sweep: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """The rows have roles and costs."""
    command = ("sweep", "--config", sweep, "--out", tmp_path / "out")
    status, output = await ran(*command)
    assert status == 0, output
    sweep_rows = rows(tmp_path / "out")
    assert [row.cell for row in sweep_rows] == [name for name in CELLS for _ in range(8)]
    taught = [row for row in sweep_rows if row.executor == "teacher"]
    assert all(row.exact_match and row.searches == (2, 1) for row in taught)
    untaught = [row for row in sweep_rows if row.executor == "student"]
    assert not any(row.exact_match for row in untaught)
    assert {row.dataset for row in sweep_rows} == {"first", "films"}
    assert all((row.accepted is None) == (row.question_id == "q3") for row in taught)
    delegation, *_ = untaught[0].spent
    assert (delegation.role, delegation.model, delegation.attempts) == ("delegation", "backbone", 3)
    assert delegation.nano_usd == 3 * (10 * 1000 + 2 * 2000)

    calls = endpoint.answered.total()
    status, output = await ran(*command)
    assert (status, endpoint.answered.total()) == (0, calls), "there is nothing left to do"


async def test_a_sweep_can_be_extended(
    ran: Ran, sweep: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Rollouts, questions and pairs can be added: existing rows are kept and not paid for again;
    nothing else may change.
    """
    original = sweep.read_text("utf-8")
    command = ("sweep", "--config", sweep, "--out", tmp_path / "grown")
    of_teacher = 'executor = ["student", "teacher"]'
    smaller = original.replace(of_teacher, 'executor = ["student"]').replace(
        "rollouts = 2", "rollouts = 1\nlimit = 2"
    )
    sweep.write_text(smaller, "utf-8")
    status, output = await ran(*command)
    assert status == 0, output
    known_rows = {(row.cell, row.question_id, row.rollout) for row in rows(tmp_path / "grown")}
    assert len(known_rows) == 2 * 3

    sweep.write_text(original, "utf-8")
    status, output = await ran(*command)
    assert status == 0, output
    sweep_rows = rows(tmp_path / "grown")
    assert known_rows < {(row.cell, row.question_id, row.rollout) for row in sweep_rows}
    assert len(sweep_rows) == 3 * 8
    assert max(endpoint.answered.values()) == 2, (
        "each of the two pairs asks the backbone once with each seed"
    )
    assert read_study(tmp_path / "grown").complete

    manifest = read_manifest(tmp_path / "grown")
    assert manifest.figures["rollouts"] == 3 * 8
    assert manifest.files == {"results.jsonl": sha256_of(tmp_path / "grown" / "results.jsonl")}

    calls = endpoint.answered.total()
    sweep.write_text(smaller, "utf-8")
    status, output = await ran(*command)
    assert (status, endpoint.answered.total()) == (0, calls), output
    cut = read_study(tmp_path / "grown")
    assert cut.complete
    assert list(cut.plan.parameters) == ["student", "big", "teacher"], (
        "in the order of the file, which is that of size"
    )
    assert sum(len(cell.rows) for cell in cut.cells) == 2 * 3, (
        "a report is about what the file says now"
    )
    sweep.write_text("seed = 7\n" + original, "utf-8")
    status, output = await ran(*command)
    assert (status, "was begun with settings.seed 0 (now 7)" in output) == (1, True), output


async def test_a_killed_sweep_resumes(
    ran: Ran, sweep: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """The rows are those of an undisturbed sweep, and no call is paid for twice."""
    command = ("sweep", "--config", sweep, "--out")
    status, output = await ran(*command, tmp_path / "undisturbed")
    assert status == 0, output
    calls = dict(endpoint.answered)

    endpoint.answered.clear()
    for free in (3, 20, 25):
        endpoint.free = free
        endpoint.held = 0
        endpoint.both_held.clear()
        process = await started(*command, tmp_path / "killed", module="benchmarks")
        async with asyncio.timeout(60):
            await endpoint.both_held.wait()
        process.kill()
        await process.wait()
    with (tmp_path / "killed" / "results.jsonl").open("ab") as torn:
        torn.write(b'{"cell": "big + stu')
    endpoint.free = 10**6
    status, output = await ran(*command, tmp_path / "killed")
    assert status == 0, output
    assert dict(endpoint.answered) == calls
    assert rows(tmp_path / "killed") == rows(tmp_path / "undisturbed")
    assert read_study(tmp_path / "killed").complete


async def test_failed_rollouts_have_no_row(
    ran: Ran, sweep: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """They are named; finished rows are kept, and the same command repeats the failed ones."""
    endpoint.unwanted = QUESTIONS[1].text
    command = ("sweep", "--config", sweep, "--out", tmp_path / "out")
    status, output = await ran(*command)
    assert status == 1
    assert "big + student, q1, rollout 1: " in output
    assert "unwanted content" in output
    assert {row.question_id for row in rows(tmp_path / "out")} == {"q0", "q2", "q3"}
    calls = endpoint.answered.total()

    endpoint.unwanted = ""
    status, output = await ran(*command)
    assert status == 0, output
    assert len(rows(tmp_path / "out")) == 24
    assert endpoint.answered.total() > calls
    assert max(endpoint.answered.values()) == 2, (
        "each of the two pairs asks the backbone once with each seed"
    )


async def test_another_index_is_refused(ran: Ran, sweep: Path, tmp_path: Path) -> None:
    """Rows over two indexes cannot be compared, in any cell."""
    status, output = await ran("sweep", "--config", sweep, "--out", tmp_path / "out")
    assert status == 0, output
    (index,) = {row.index for row in rows(tmp_path / "out")}
    with closing(JsonlFile(tmp_path / "out" / "results.jsonl", QuestionResult, ADVICE)) as file:
        going_on = Sweep(read_plan(sweep), tmp_path / "out", file, print, lambda: None, None)
        going_on.check_index(index)
        with pytest.raises(BadConfig, match="the results come from the index "):
            going_on.check_index("other")
