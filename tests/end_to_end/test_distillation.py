"""From logged traffic to a version in shadow mode, with the real teacher, engines and training."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import executor_version_service_pb2 as pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.executor_version_service_pb2_grpc import ExecutorVersionServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub

from executor_sft.evaluate import Evaluation
from executor_sft.miniworld.export import write_config
from executor_sft.miniworld.questions import MiniQuestion
from executor_sft.rollout import Rollout
from executor_sft.step import read_manifest
from serving.config.config import Config
from tests.end_to_end.conftest import Demo
from tests.end_to_end.test_demo import _questions
from tests.scripted_gateway import environment

pytestmark = pytest.mark.asyncio(loop_scope="package")
_LOGGED = 24
_HELD_OUT = 6
_RECIPE = (
    'method = "lora"\nrank = 8\nepochs = 1.0\nbatch = 16\ndevice_batch = 16\nlearning_rate = 1e-3\n'
)


async def test_logged_questions_become_a_shadow_version(
    demo: Demo, demo_engines: Config, tmp_path: Path
) -> None:
    """Questions with right answers, logged by the gateway, are mined, filtered, trained on,
    evaluated and published. The version works in shadow mode, and every step records its inputs.
    """
    held_out = _questions(_HELD_OUT, single_search=True)  # so little training does not spoil these
    known = {question.text for question in held_out}
    logged = [
        held_out_question
        for held_out_question in _questions(_LOGGED + _HELD_OUT, single_search=False)
        if held_out_question.text not in known
    ][:_LOGGED]
    # Held-out questions are asked too, and must not be trained on.
    await asyncio.gather(*(_ask(demo, question) for question in held_out + logged))
    questions = [
        {
            "id": held_out_question.id,
            "text": held_out_question.text,
            "answer": held_out_question.answer,
        }
        for held_out_question in held_out
    ]
    (tmp_path / "held_out.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(questions))
    (tmp_path / "recipe.toml").write_text(_RECIPE)
    write_config(demo_engines, tmp_path / "rolegate.toml")
    await _retrain(demo, tmp_path)

    figures = read_manifest(tmp_path / "work" / "mined").figures
    assert figures["selection"]["evaluation"] >= _HELD_OUT
    lines = (tmp_path / "work" / "mined" / "rollouts.jsonl").read_bytes().splitlines()
    mined = {msgspec.json.decode(line, type=Rollout).question.text for line in lines}
    assert mined & {question.text for question in logged}
    assert not mined & known
    evaluation = msgspec.json.decode(
        (tmp_path / "work/evaluated/evaluation.json").read_bytes(), type=Evaluation
    )
    assert evaluation.questions == len({held_out_question.text for held_out_question in held_out})
    versions = ExecutorVersionServiceStub(demo.channel)
    listed = (await versions.ListExecutorVersions(pb.ListExecutorVersionsRequest())).versions
    (shadow,) = [version for version in listed if version.state == pb.EXECUTOR_VERSION_STATE_SHADOW]
    assert f'"questions":{evaluation.questions}' in shadow.manifest_json.replace(" ", "")
    off = pb.SetExecutorVersionTrafficRequest(
        version=shadow.version, state=pb.EXECUTOR_VERSION_STATE_REGISTERED
    )
    await versions.SetExecutorVersionTraffic(off)


async def _ask(demo: Demo, question: MiniQuestion) -> None:
    """Ask, and send the right answer as feedback."""
    request = answer_pb.AnswerRequest(question=question.text)
    answer = await AnswerServiceStub(demo.channel).Answer(request, timeout=120)
    feedback = run_pb.SubmitFeedbackRequest(run_id=answer.run_id, right_answer=question.answer)
    await RunServiceStub(demo.channel).SubmitFeedback(feedback)


async def _retrain(demo: Demo, folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "executor_sft",
            "retrain",
            "--config",
            "rolegate.toml",
            "--work",
            "work",
            "--yes",
        ),
        *(
            "--evaluation",
            "held_out.jsonl",
            "--recipe",
            "recipe.toml",
            "--min-trajectories",
            "5",
            "--address",
            demo.address,
        ),
        *("--model", demo.config.engines["executor"].path),
        cwd=folder,
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
