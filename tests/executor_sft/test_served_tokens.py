"""Rows hold what an engine reads and writes: every turn in the words in which it is served."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from executor_sft.dataset import ServedTokens, rows_of
from executor_sft.filter import Kept
from executor_sft.minimodel.tokenizer import load_tokenizer
from router.errors import BadConfig
from router.models.model import Completion, Message
from router.search.executor import ExecutorLimits
from serving.config.file import load_config, preset
from tests.executor_sft.traces import REPORT, executed, search

MINI = Path(load_config(preset("mini")).engines["executor"].path)
QWEN3 = """\
{%- set last = namespace(at=0) -%}
{%- for message in messages if message.role == 'user' %}{% set last.at = messages.index(message) %}{% endfor -%}
{%- for message in messages -%}
{{ '<|' + message.role + '|>' }}
{%- set content = message.content -%}
{%- if message.role == 'assistant' and '</think>' in content -%}
{%- if loop.index0 <= last.at %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif -%}
{%- endif -%}
{{ content + '<|end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|assistant|>' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif -%}
{%- endif -%}
"""
"""As Qwen3's: thinking of earlier turns is dropped, and switched off by an empty block in the prompt."""


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], Path]:
    """The mini executor's tokenizer with another chat template."""

    def folder(template: str) -> Path:
        for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"):
            shutil.copy(MINI / name, tmp_path / name)
        (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return folder


def text(ids: tuple[int, ...]) -> str:
    """What the ids stand for, without the spaces that the mini tokenizer puts before each stretch of text."""
    decoded: str = load_tokenizer(MINI).decode(list(ids))
    return decoded.replace("> ", ">").replace("\n ", "\n").replace(" \n", "\n").strip()


def test_a_turn_ends_where_the_engine_stops() -> None:
    """The text of the turn, and the template's end of turn."""
    tokens = ServedTokens(MINI)
    assert text(tokens.completion(Completion(search("Heat"), "stop"))) == "<search>Heat</search><|end|>"
    assert text(tokens.prompt([Message("user", "Heat?")])) == "<|user|>Heat?<|end|><|assistant|>"


def test_what_follows_the_last_tag_is_not_learnt() -> None:
    """After a correction no stop string ends a turn, and serving reads no further either."""
    written = Completion(search("Heat") + " and then some", "stop")
    assert text(ServedTokens(MINI).completion(written)) == "<search>Heat</search><|end|>"


@pytest.mark.parametrize(
    ("thinking", "output", "written"),
    [
        (None, Completion(REPORT, "stop", "so it is"), "<think>\nso it is\n</think>\n\n" + REPORT),
        (True, Completion(f"\n\n{REPORT}", "stop", "\nso it is\n"), "<think>\nso it is\n</think>\n\n" + REPORT),
        (True, Completion(f"<think>\nso\n</think>\n\n{REPORT}", "stop"), f"<think>\nso\n</think>\n\n{REPORT}"),
        (True, Completion(REPORT, "stop"), REPORT),
        (False, Completion(REPORT, "stop", "so it is"), REPORT),
        (False, Completion(f"<think>\nso\n</think>\n\n{REPORT}", "stop"), REPORT),
    ],
)
def test_reasoning_is_learnt_where_the_role_thinks(
    model: Callable[[str], Path], thinking: bool | None, output: Completion, written: str
) -> None:
    """In a thinking block before the turn; where thinking is off, the prompt has closed the block already."""
    tokens = ServedTokens(model(QWEN3), thinking=thinking)
    assert text(tokens.completion(output)) == f"{written}<|end|>"
    closed = text(tokens.prompt([Message("user", "?")])).endswith("</think>")
    assert closed == (thinking is False)


def test_a_block_that_the_template_opens_is_not_opened_again(model: Callable[[str], Path]) -> None:
    """As with models that always think."""
    template = QWEN3.replace("{{ '<|assistant|>' }}", "{{ '<|assistant|><think>\n' }}")
    written = ServedTokens(model(template)).completion(Completion(REPORT, "stop", "so it is"))
    assert text(written) == f"so it is\n</think>\n\n{REPORT}<|end|>"


def test_earlier_turns_stand_in_the_prompt_as_they_are_served(model: Callable[[str], Path]) -> None:
    """Their thinking is dropped by serving, and so it is in the rows; one sequence could not hold both."""
    thoughts = [Completion(search("Heat"), "stop", "look it up"), Completion(REPORT, "stop", "there it is")]
    execution = executed(*thoughts)
    rows, _ = rows_of([Kept("teacher_single", "q", "", execution)], ServedTokens(model(QWEN3), thinking=True))
    first, second = rows
    assert "look it up" in text(first.completion_ids) and "there it is" in text(second.completion_ids)
    assert "look it up" not in text(second.prompt_ids)
    assert first.prompt_ids + first.completion_ids != second.prompt_ids[: len(first.prompt_ids + first.completion_ids)]


def test_models_without_a_system_role_are_shown_it_as_they_are_served() -> None:
    """The system prompt opens the first user turn."""
    opening = [Message("system", "be brief"), Message("user", "Heat?")]
    assert text(ServedTokens(MINI).prompt(opening)).startswith("<|system|>be brief")
    assert text(ServedTokens(MINI, system_role=False).prompt(opening)).startswith("<|user|>be brief\n\nHeat?")


def test_a_template_that_ends_no_turn_is_refused(model: Callable[[str], Path]) -> None:
    """A model trained so would never stop."""
    endless = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with pytest.raises(BadConfig, match="no engine stops"):
        ServedTokens(model(endless)).completion(Completion(REPORT, "stop"))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """It is named."""
    with pytest.raises(BadConfig, match="holds no tokenizer"):
        ServedTokens(tmp_path)


def test_a_cap_on_turns_changes_no_row() -> None:
    """What the executor was told is part of its prompts."""
    execution = executed(search("Heat"), REPORT, limits=ExecutorLimits(max_turns=2, max_searches=1))
    rows, _ = rows_of([Kept("teacher_single", "q", "", execution)], ServedTokens(MINI))
    assert "No searches are left" in text(rows[1].prompt_ids)
