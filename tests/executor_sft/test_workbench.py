"""What steps work with: opened from a config, without a gateway, a model or a server."""

from pathlib import Path

import msgspec
import pytest

from executor_sft.config_settings import config_settings
from executor_sft.workbench import workbench
from router.errors import BadConfig
from serving.config import Config
from serving.config_file import load_config

ROLE = 'model = "m"\nprompt = "prompt.txt"\nbase_url = "http://127.0.0.1:9/v1"\n'


def config(folder: Path, distillation: str = "", role: str = ROLE) -> Config:
    """Everything at an address where nobody listens."""
    (folder / "prompt.txt").write_text("You work.", "utf-8")
    tables = "".join(f"[roles.{name}]\n{role}" for name in ("delegation", "execution", "answer"))
    (folder / "config.toml").write_text(f'{tables}{distillation}[retrieval]\naddress = "127.0.0.1:9"\n', "utf-8")
    return load_config(folder / "config.toml")


async def test_samples_differ_in_their_seeds_and_the_judge_does_not(tmp_path: Path) -> None:
    """Temperature and seed are those of the sample; a verdict is the config's."""
    judged = config(tmp_path, f"[distillation.judge]\n{ROLE}temperature = 0.25\n")
    async with workbench(judged, lambda step: None) as bench:
        role = bench.sampled(0.75, 3).role("execution", judged.roles.execution, version="executor-000001")
        assert (role.sampling.temperature, role.sampling.seed, role.streams) == (0.75, 3, False)
        assert (role.model.name, role.executor_version) == ("executor-000001", "executor-000001")
        judge = bench.sampled(0.75, 3).judge
        assert judge is not None
        assert (judge.role.sampling.temperature, judge.role.name) == (0.25, "judge")
        assert bench.context().ledger is not bench.context().ledger


async def test_a_key_that_is_not_set(tmp_path: Path) -> None:
    """Is missed before anything is started, and only where it is needed."""
    taught = config(tmp_path, f'[distillation.teacher]\n{ROLE}api_key_env = "NOBODY_SETS_THIS"\n')
    async with workbench(taught, lambda step: None):
        pass
    with pytest.raises(BadConfig, match=r"^distillation.teacher.api_key_env: .*NOBODY_SETS_THIS"):
        async with workbench(taught, lambda step: None, teacher=True):
            pass


@pytest.mark.parametrize("name", ["teacher", "judge"])
def test_a_role_that_cannot_be(tmp_path: Path, name: str) -> None:
    """Teacher and judge are checked as the other roles are."""
    with pytest.raises(BadConfig, match=rf"distillation\.{name}\.prompt: there is no file {tmp_path}/nothing.txt"):
        config(tmp_path, f'[distillation.{name}]\nmodel = "m"\nprompt = "nothing.txt"\n')


def test_what_makes_a_result_what_it_is(tmp_path: Path) -> None:
    """A prompt's text does and a limit, but not where a model is served; no key is told."""
    before = config_settings(config(tmp_path))
    moved = config(tmp_path, role=ROLE.replace(":9", ":10"))
    assert config_settings(moved) == before
    secret = config(tmp_path, role=f'{ROLE}extra_body = {{ key = "hush" }}\n')
    assert config_settings(secret) != before
    assert b"hush" not in msgspec.json.encode(config_settings(secret))
    (tmp_path / "prompt.txt").write_text("You rest.", "utf-8")
    assert config_settings(moved) != before
