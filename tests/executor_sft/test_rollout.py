"""`rolegate sft rollout` and `mine` with real servers: completed, killed, refused and confirmed."""

import asyncio
import json
import os
import pty
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from executor_sft.rollout import Rollout
from executor_sft.step import read_manifest
from router.access import Tenant
from router.edge.grpc.server import Server
from router.models import Message, Prompt, Sampling
from router.models.model import TokenIds
from router.store import Database
from router.trace.export import AgentTrajectory
from serving.retrieval.services import RetrievalServicer
from tests.conftest import Rolegate
from tests.executor_sft.scripted_roles import (
    OnePage,
    answers,
    asks,
    questions,
    searches_once,
    searches_twice,
)
from tests.executor_sft.test_mine import asked, say
from tests.openai_server import ChatRequest, fails, hang, says, serving
from tests.router.store.stored import call, put
from tests.router.unfiltered import Unfiltered

Ran = Callable[..., Awaitable[tuple[int, str]]]
ROOT = Path(__file__).parents[2]
MODELS = {
    "backbone": asks,
    "answerer": answers,
    "teacher": searches_twice,
    "student": searches_once,
}
QUESTIONS = questions(4)


class Endpoint:
    """Script of all models; they can be down, and can delay callers."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        """Calls that were answered, by model and messages."""
        self.models: dict[str, Callable[[Prompt], str]] = dict(MODELS)
        self.down: set[str] = set()
        self.tell_tokens: set[str] = set()
        """Models that were asked for their tokens."""
        self.sampling: set[tuple[int | None, float | None]] = set()
        """Seeds and temperatures that were asked for."""
        self.lucky = False
        """Whether the student knows, with every other seed, what the teacher does."""
        self.unwanted = ""
        """Calls with this in them are refused."""
        self.free = 10**6
        """So many calls are answered, the others held."""
        self.held = 0
        self.both_held = asyncio.Event()

    async def play(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        chat_request = msgspec.json.decode(body, type=ChatRequest)
        if b'"return_token_ids":true' in body:
            self.tell_tokens.add(chat_request.model)
        if chat_request.model in self.down:
            return await fails(503, "overloaded")(request)
        if self.unwanted and self.unwanted in chat_request.texts[-1]:
            return await fails(400, "unwanted content")(request)
        if self.free == 0:
            self.held += 1
            if self.held == 2:
                self.both_held.set()
            return await hang(request)
        self.free -= 1
        messages = tuple(
            Message(message["role"], message["content"]) for message in chat_request.messages
        )
        sampling = msgspec.json.decode(body)
        seed = sampling.get("seed")
        self.sampling.add((seed, sampling["temperature"]))
        self.answered[f"{chat_request.model} {seed} {messages}"] += 1
        lucky = self.lucky and chat_request.model == "student" and seed % 2 == 0
        text = self.models["teacher" if lucky else chat_request.model](Prompt(messages, Sampling()))
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        if "logprobs" not in sampling:
            return await says(text, usage=usage)(request)
        token_ids = {
            "token_ids": [3],
            "logprobs": {"content": [{"logprob": -0.5}]},
            "finish_reason": "stop",
        }
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, **token_ids}
        return web.json_response({"choices": [choice], "usage": usage, "prompt_token_ids": [1, 2]})


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
async def config(endpoint: Endpoint, tmp_path: Path) -> AsyncIterator[Path]:
    """A config with all roles at the endpoint."""
    async with serving(recording=False) as models:
        models.plays(endpoint.play)
        server = Server(None, RetrievalServicer(Unfiltered(OnePage())))
        port = await server.start("127.0.0.1:0")
        names = {
            "roles.delegation": ("backbone", "delegation"),
            "roles.execution": ("student", "execution"),
            "roles.answer": ("answerer", "answer"),
            "distillation.teacher": ("teacher", "execution"),
        }
        tables = [
            f'[{table}]\nmodel = "{model}"\nprompt = '
            f'"shipped:prompts/full/{prompt}.txt"\nattempts = 1\n'
            f'base_url = "{models.base_url}"\n'
            for table, (model, prompt) in names.items()
        ]
        file = tmp_path / "config.toml"
        retrieval = f'[retrieval]\naddress = "127.0.0.1:{port}"\n'
        file.write_text(
            "\n".join(['[server]\nstore = "sqlite:///runs.db"\n', retrieval, *tables]), "utf-8"
        )
        yield file
        await server.drain(0)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A file of questions with a duplicate."""
    path = tmp_path / "questions.jsonl"
    rows = [
        {
            "id": question.id,
            "question": question.text,
            "answers": question.golds,
            "dataset": "films",
        }
        for question in QUESTIONS
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, rows[0]]), "utf-8")
    return path


@pytest.fixture
def ran(rolegate: Rolegate) -> Ran:
    """Run a command alongside this process's servers; return its exit status and output."""

    async def run(*arguments: object) -> tuple[int, str]:
        ended = await asyncio.to_thread(rolegate, "sft", *arguments)
        return ended.status, ended.out + ended.err

    return run


async def started(*arguments: object, module: str = "executor_sft") -> asyncio.subprocess.Process:
    """Start a command in its own process."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *map(str, arguments)),
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )


def rollouts(folder: Path) -> list[Rollout]:
    lines = (folder / "rollouts.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Rollout) for line in lines]


async def test_rollout_prints_search_counts_and_runs_once(
    ran: Ran, config: Path, listed: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """A second start does nothing; other settings are refused."""
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text(json.dumps({"question": QUESTIONS[3].text.upper()}), "utf-8")
    command = (
        "rollout",
        "--questions",
        listed,
        "--config",
        config,
        "--out",
        tmp_path / "out",
        "--exclude",
        held_out,
    )
    status, output = await ran(*command)
    assert status == 0, output
    assert [spent.question.id for spent in rollouts(tmp_path / "out")] == ["q0", "q1", "q2"]
    figures = read_manifest(tmp_path / "out").figures
    assert figures["selection"] == {
        "read": 5,
        "duplicates": 1,
        "excluded": 1,
        "nearly_excluded": 0,
        "over_limit": 0,
    }
    assert (figures["questions"], figures["failed"], figures["exact_match"]) == (3, {}, 1.0)
    assert endpoint.tell_tokens == {"teacher", "student"}
    executors = [list(figures["executors"][name].values()) for name in ("teacher", "student")]
    assert executors == [[6, 1.5, 0, 3, 3, "teacher", 0, 1.0], [6, 1.0, 0, 6, 0, "student", 0, 0.5]]
    assert sum(spent["calls"] for spent in figures["spent"]) == endpoint.answered.total()
    assert (
        sum(spent["prompt_tokens"] for spent in figures["spent"]) == 10 * endpoint.answered.total()
    )
    assert "1.5000" in output

    calls = endpoint.answered.total()
    status, output = await ran(*command)
    assert (status, endpoint.answered.total()) == (0, calls)
    assert "was finished at" in output
    status, output = await ran(*command, "--limit", 1)
    assert status == 1
    assert "was begun with settings.limit absent (now 1); use the old values, or name" in output


async def test_a_step_with_a_failed_question_is_not_finished(
    ran: Ran, config: Path, listed: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """An option accepts failures; the same command retries the question."""
    command = ("rollout", "--questions", listed, "--config", config, "--out", tmp_path / "out")
    endpoint.unwanted = QUESTIONS[1].text
    status, output = await ran(*command)
    assert (status, (tmp_path / "out" / "manifest.json").exists()) == (1, False)
    assert "--leave-failed" in output
    status, output = await ran(*command[:-1], tmp_path / "without", "--leave-failed")
    assert status == 0, output
    assert [rollout.question.id for rollout in rollouts(tmp_path / "without")] == ["q0", "q2", "q3"]
    endpoint.unwanted = ""
    status, output = await ran(*command)
    assert status == 0, output
    assert [rollout.question.id for rollout in rollouts(tmp_path / "out")] == [
        "q0",
        "q1",
        "q2",
        "q3",
    ]


async def test_a_killed_rollout_resumes(
    ran: Ran, config: Path, listed: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """After SIGKILL, the same command repeats no answered call."""
    command = ("rollout", "--questions", listed, "--config", config, "--concurrency", 2, "--out")
    assert (await ran(*command, tmp_path / "whole"))[0] == 0
    answered = endpoint.answered.copy()
    endpoint.answered.clear()
    endpoint.free = 30
    process = await started(*command, tmp_path / "out")
    async with asyncio.timeout(120):
        await endpoint.both_held.wait()
    process.kill()
    await process.wait()
    assert not (tmp_path / "out" / "manifest.json").exists()
    endpoint.free = 10**6
    status, output = await ran(*command, tmp_path / "out")
    assert status == 0, output
    assert endpoint.answered == answered
    assert (tmp_path / "out" / "rollouts.jsonl").read_bytes() == (
        tmp_path / "whole" / "rollouts.jsonl"
    ).read_bytes()


async def test_an_unavailable_teacher_is_named(
    ran: Ran, config: Path, listed: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """The error has the address, the progress and what to do.

    Without a teacher in the config, it says what to add.
    """
    endpoint.down.add("teacher")
    command = ("rollout", "--questions", listed, "--config", config, "--out")
    status, output = await ran(*command, tmp_path / "down")
    assert status == 1
    for part in (
        "model 'teacher': HTTP 503: overloaded",
        "0 of 4 questions are rolled out",
        "same command",
    ):
        assert part in output
    config.write_text(config.read_text("utf-8").partition("[distillation.teacher]")[0], "utf-8")
    status, output = await ran(*command, tmp_path / "out")
    assert status == 1
    assert "distillation.teacher: is not set; add a table [distillation.teacher]" in output
    assert not (tmp_path / "out").exists()


SAMPLED = ("rollout", "--group", 5, "--executor", "base", "--concurrency", 2)


def sampled(folder: Path) -> list[AgentTrajectory]:
    lines = (folder / "trajectories.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=AgentTrajectory) for line in lines]


@pytest.fixture
def untaught(config: Path) -> Path:
    """The config without a teacher, which groups do not need."""
    config.write_text(config.read_text("utf-8").partition("[distillation.teacher]")[0], "utf-8")
    return config


async def test_groups_sample_each_question_several_times(
    ran: Ran, untaught: Path, listed: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Each call has its own seed, and all roles return token ids."""
    endpoint.lucky = True
    command = (
        *SAMPLED,
        "--config",
        untaught,
        "--questions",
        listed,
        "--limit",
        2,
        "--out",
        tmp_path / "out",
    )
    status, output = await ran(*command)
    assert status == 0, output
    figures = read_manifest(tmp_path / "out").figures
    assert (sum(figures["groups"].values()), figures["failed"]) == (2, {})
    assert endpoint.tell_tokens == {"backbone", "student", "answerer"}
    assert len(endpoint.sampling) == endpoint.answered.total()
    assert {temperature for _, temperature in endpoint.sampling} == {1.0}

    lines = sampled(tmp_path / "out")
    agents = ["delegation", "execution-0", "execution-1", "answer"]
    assert [(line.run_id, line.agent) for line in lines] == [
        (f"q{number}/{seed}", agent) for number in range(2) for seed in range(5) for agent in agents
    ]
    assert [
        len({line.group for line in lines if line.run_id[:2] == name}) for name in ("q0", "q1")
    ] == [1, 1]
    right = {line.run_id for line in lines if line.reward.exact_match}
    assert right == {
        line.run_id for line in lines if line.answer == f"home of MannF{line.run_id[1]}"
    }
    assert figures["exact_match"] == len(right) / 10
    assert {name[:2] for name in right} == {"q0", "q1"}
    assert {line.model for line in lines} == {"backbone", "student", "answerer"}
    for turn in (turn for line in lines for turn in line.turns):
        assert turn.tokens == TokenIds((1, 2), (3,), (-0.5,))

    filtering = ("filter", tmp_path / "out", "--best", "--none", "--out", tmp_path / "best")
    status, output = await ran(*filtering)
    assert status == 0, output
    assert read_manifest(tmp_path / "best").figures["strata"] == {
        "best_delegator": 2,
        "best_executor": 4,
    }


async def test_killed_groups_resume(
    ran: Ran, untaught: Path, listed: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """They end with the same lines; another temperature is another step."""
    # With a name for each film, no two questions ask the same and wait for one held call
    endpoint.models["student"] = searches_twice
    command = (*SAMPLED, "--config", untaught, "--questions", listed, "--out")
    assert (await ran(*command, tmp_path / "whole"))[0] == 0
    answered = endpoint.answered.copy()
    endpoint.answered.clear()
    endpoint.free = 50
    process = await started(*command, tmp_path / "out")
    async with asyncio.timeout(120):
        await endpoint.both_held.wait()
    process.kill()
    await process.wait()
    endpoint.free = 10**6
    status, output = await ran(*command, tmp_path / "out")
    assert status == 0, output
    assert endpoint.answered == answered
    assert sampled(tmp_path / "out") == sampled(tmp_path / "whole")
    status, output = await ran(*command, tmp_path / "out", "--temperature", 0.8)
    assert (status, "settings.temperature 1.0 (now 0.8)" in output) == (1, True)
    assert (await ran(*command, tmp_path / "cold", "--temperature", 0.2))[0] == 1


async def logged(folder: Path) -> None:
    """A store in which two of the questions were answered wrongly."""
    database = await Database.open(f"sqlite:///{folder / 'runs.db'}")
    calls = [call("q0"), call("q0", 1, role="delegation", model="backbone", executor_version=None)]
    runs = [
        asked(question.id, question.text, 10.0 + number)
        for number, question in enumerate(QUESTIONS)
    ]
    runs[0] = msgspec.structs.replace(runs[0], calls=tuple(calls))
    runs[2] = msgspec.structs.replace(runs[2], tenant="private")
    await put(database, *runs, tenants=[Tenant("private", training=False)])
    for question in QUESTIONS[:3]:
        await say(database, question.id, accepted=False, right_answer=question.golds[0])
    await database.close()


async def test_mine_rolls_out_stored_runs_after_confirmation(
    ran: Ran, config: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """A later start needs neither store nor confirmation."""
    await logged(tmp_path)
    command = ("mine", "--config", config, "--out", tmp_path / "out")
    status, output = await ran(*command)
    assert status == 1
    assert "pass --yes" in output
    assert not (tmp_path / "out").exists()

    status, output = await ran(*command, "--yes")
    assert status == 0, output
    assert "–" in output, "a model of this machine has no price"
    assert [rollout.question.id for rollout in rollouts(tmp_path / "out")] == ["q1", "q0"]
    assert all(rollout.verdict.correct for rollout in rollouts(tmp_path / "out"))
    counts = read_manifest(tmp_path / "out").figures["selection"]
    assert (counts["read"], counts["right_answer_unknown"], counts["selected"]) == (3, 1, 2)

    (tmp_path / "runs.db").unlink()
    calls = endpoint.answered.total()
    status, output = await ran(*command)
    assert (status, endpoint.answered.total()) == (0, calls)
    assert "was finished at" in output


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other side of a pseudo-terminal from which commands read."""
    controller, terminal_end = pty.openpty()
    with Path(os.ttyname(terminal_end)).open() as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        yield controller
    os.close(controller)
    os.close(terminal_end)


@pytest.mark.parametrize(("reply", "status"), [(b"y\n", 0), (b"\n", 1)])
async def test_mine_accepts_only_yes_at_a_terminal(
    ran: Ran, config: Path, keyboard: int, reply: bytes, status: int
) -> None:
    folder = config.parent
    await logged(folder)
    os.write(keyboard, reply)
    ended, output = await ran("mine", "--config", config, "--out", folder / "out", "--limit", 1)
    assert ended == status, output
    assert "Roll out 1 questions? [y/N]" in output
    assert (folder / "out").exists() == (status == 0)


async def test_mine_without_usable_questions_asks_nothing(
    ran: Ran, config: Path, tmp_path: Path
) -> None:
    """Every question is held out, and the output says so."""
    await logged(tmp_path)
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text(
        "".join(f"{json.dumps({'question': question.text})}\n" for question in QUESTIONS), "utf-8"
    )
    status, output = await ran(
        "mine", "--config", config, "--out", tmp_path / "out", "--evaluation", held_out, "--yes"
    )
    assert status == 1
    assert "no logged question can be used" in output
