"""What the study's models learn from."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from executor_sft.minimodel.model import load_tokenizer
from executor_sft.minimodel.stream import BATCH_TOKENS, batches, conversations, encode
from executor_sft.miniworld.dialogues import Dialogue, RolePrompts

_MODELS = Path(__file__).parents[2] / "serving" / "models"


@pytest.fixture(scope="module")
def taught(system: RolePrompts) -> list[Dialogue]:
    """400 lessons, with as many passages as are served."""
    return list(itertools.islice(conversations("generalist", system, 5_000, passages=3), 400))


def test_every_role_is_taught(taught: list[Dialogue], system: RolePrompts) -> None:
    """Delegator, executor with one search and with two, answerer, and single agent."""
    of = {
        prompt: [dialogue for dialogue in taught if dialogue[0].text == prompt]
        for prompt in (system.delegation, system.execution, system.answer, system.agent)
    }
    assert min(map(len, of.values())) > 40
    searches = {sum(turn.kind == "search" for turn in dialogue) for dialogue in of[system.execution]}
    assert searches == {1, 2}


def test_nearly_all_fit_a_long_row(taught: list[Dialogue], system: RolePrompts) -> None:
    """A single agent's conversation holds what all its searches found."""
    tokenizer = load_tokenizer(_MODELS / "mini-backbone")
    lengths = [len(encode(dialogue, tokenizer)[0]) for dialogue in taught]
    assert sum(length > 1024 for length in lengths) < 0.02 * len(lengths)
    assert sum(length > 512 for length in lengths) > 0.05 * len(lengths)
    batch = next(batches(iter(taught), tokenizer, (1024,)))
    assert batch.attention().shape == (4, 1, 1024, 1024)


def test_most_stand_in_short_rows(taught: list[Dialogue]) -> None:
    """A batch has rows of one length; a long one begins with a conversation that no short one holds."""
    tokenizer = load_tokenizer(_MODELS / "mini-backbone")
    packed = list(itertools.islice(batches(itertools.cycle(taught), tokenizer, (512, 1024)), 40))
    shapes = Counter(tuple(batch.tokens.shape) for batch in packed)
    assert set(shapes) == {(BATCH_TOKENS // 512, 512), (BATCH_TOKENS // 1024, 1024)}
    assert shapes[8, 512] > shapes[4, 1024]
    for batch in packed:
        longest = [int(row.max()) + 1 for row in batch.positions]
        assert batch.tokens.shape[1] == 512 or min(longest) > 512
