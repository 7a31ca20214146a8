"""Steps open their roles from a config, without a gateway, model or server."""

from pathlib import Path

import msgspec
import pytest

from executor_sft.rollout import teacher_config
from executor_sft.runtime import open_runtime
from executor_sft.step import config_settings
from router.errors import BadConfig
from serving.config.config import Config, RetrievalConfig
from serving.config.file import load_config
from tests.openai_server import MODEL, says, serving

ROLE = 'model = "m"\nprompt = "prompt.txt"\nbase_url = "http://127.0.0.1:9/v1"\n'


def config(folder: Path, distillation: str = "", role: str = ROLE) -> Config:
    """A config with everything at an address where nothing listens."""
    (folder / "prompt.txt").write_text("You work.", "utf-8")
    tables = "".join(f"[roles.{name}]\n{role}" for name in ("delegation", "execution", "answer"))
    (folder / "config.toml").write_text(
        f'{tables}{distillation}[retrieval]\naddress = "127.0.0.1:9"\n', "utf-8"
    )
    return load_config(folder / "config.toml")


async def test_samples_differ_in_their_seeds_and_the_judge_does_not(tmp_path: Path) -> None:
    """Temperature and seed of a sample are its own; a verdict has the config's."""
    judged = config(tmp_path, f"[distillation.judge]\n{ROLE}temperature = 0.25\n")
    async with open_runtime(judged, lambda step: None) as bench:
        role = bench.sampled(3, 0.75).role(
            "execution", judged.roles.execution, version="executor-000001"
        )
        assert (role.sampling.temperature, role.sampling.seed, role.streams) == (0.75, 3, False)
        assert (role.model.name, role.executor_version) == ("executor-000001", "executor-000001")
        judge = bench.sampled(3, 0.75).judge
        assert judge is not None
        assert (judge.role.sampling.temperature, judge.role.name) == (0.25, "judge")
        assert bench.context().ledger is not bench.context().ledger


async def test_samples_have_the_config_s_temperature_by_default(tmp_path: Path) -> None:
    """Their seeds still differ."""
    warm = config(tmp_path, role=f"{ROLE}temperature = 0.7\n")
    async with open_runtime(warm, lambda step: None) as bench:
        samples = [
            bench.sampled(seed).role("execution", warm.roles.execution).sampling for seed in (0, 1)
        ]
    assert [(sample.temperature, sample.seed) for sample in samples] == [(0.7, 0), (0.7, 1)]


async def test_a_teacher_with_the_student_s_name_is_another_model(tmp_path: Path) -> None:
    """Some endpoints serve all models under one name; the student's calls are never taken for the
    teacher's.
    """
    async with serving() as student, serving() as teacher:
        student.plays(says("a"))
        teacher.plays(says("b"))
        servers = [
            ROLE.replace("http://127.0.0.1:9/v1", server.base_url).replace('"m"', f'"{MODEL}"')
            for server in (student, teacher)
        ]
        taught = config(tmp_path, f"[distillation.teacher]\n{servers[1]}", servers[0])
        async with open_runtime(taught, lambda step: None, cache=tmp_path / "calls") as bench:
            roles = [
                bench.role("execution", role_config)
                for role_config in (taught.roles.execution, teacher_config(taught))
            ]
            texts = [
                (await role.ask(role.opening("Who?"), (), bench.context().ledger)).text
                for role in roles
            ]
    assert texts == ["a", "b"]


def test_a_teacher_with_another_prompt_is_refused(tmp_path: Path) -> None:
    """The student would learn with a prompt that it never has in service."""
    (tmp_path / "other.txt").write_text("You teach.", "utf-8")
    with pytest.raises(
        BadConfig, match=r"distillation\.teacher\.prompt: .*other\.txt differs from .*prompt\.txt"
    ):
        teacher_config(
            config(tmp_path, f"[distillation.teacher]\n{ROLE.replace('prompt.txt', 'other.txt')}")
        )


async def test_a_missing_key_is_reported_before_anything_starts(tmp_path: Path) -> None:
    """It is reported only if it is needed."""
    taught = config(tmp_path, f'[distillation.teacher]\n{ROLE}api_key_env = "NOBODY_SETS_THIS"\n')
    async with open_runtime(taught, lambda step: None):
        pass
    with pytest.raises(BadConfig, match=r"^distillation.teacher.api_key_env: .*NOBODY_SETS_THIS"):
        async with open_runtime(taught, lambda step: None, teacher=True):
            pass


@pytest.mark.parametrize("name", ["teacher", "judge"])
def test_teacher_and_judge_are_checked_like_other_roles(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        BadConfig, match=rf"distillation\.{name}\.prompt: there is no file {tmp_path}/nothing.txt"
    ):
        config(tmp_path, f'[distillation.{name}]\nmodel = "m"\nprompt = "nothing.txt"\n')


class LaterRetrieval(RetrievalConfig, frozen=True):
    """The section of a later release."""

    rerank: bool = False


def test_settings_of_a_step_are_derived_from_the_config(tmp_path: Path) -> None:
    """A new key of the retrieval makes a step's folder stale; the index's place does not."""
    original = config_settings(made := config(tmp_path))
    moved = msgspec.structs.replace(made.retrieval, index="elsewhere", timeout_s=1.0)
    assert config_settings(msgspec.structs.replace(made, retrieval=moved)) == original
    embedder = msgspec.structs.replace(made.retrieval.embedder, dimension=64)
    for changed in (
        LaterRetrieval(**msgspec.structs.asdict(made.retrieval), rerank=True),
        msgspec.structs.replace(made.retrieval, embedder=embedder),
    ):
        assert config_settings(msgspec.structs.replace(made, retrieval=changed)) != original


def test_settings_of_a_step_have_no_key(tmp_path: Path) -> None:
    """They have a prompt's text and a limit, but no model's address; a key in `extra_body` is kept
    as a digest.
    """
    original = config_settings(config(tmp_path))
    moved = config(tmp_path, role=ROLE.replace(":9", ":10"))
    assert config_settings(moved) == original
    secret = config(tmp_path, role=f'{ROLE}extra_body = {{ key = "hush" }}\n')
    assert config_settings(secret) != original
    assert b"hush" not in msgspec.json.encode(config_settings(secret))
    (tmp_path / "prompt.txt").write_text("You rest.", "utf-8")
    assert config_settings(moved) != original


async def test_a_whole_reply_may_take_as_long_as_a_call(tmp_path: Path) -> None:
    """Its first token comes with its last; limits of calls hold for all runs together."""
    patient = config(tmp_path, role=f"{ROLE}call_timeout_s = 200.0\nmax_in_flight = 4\n")
    async with open_runtime(patient, lambda step: None) as bench:
        first_sample, second_sample = (
            bench.sampled(seed).role("execution", patient.roles.execution) for seed in (0, 1)
        )
    assert (first_sample.timeouts.first_token_s, first_sample.timeouts.call_s) == (200.0, 200.0)
    assert first_sample.health is second_sample.health
    assert first_sample.endpoint is second_sample.endpoint
