"""The mini models read and write what the gateway and the engine do, and a killed training is
resumed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_sft.minimodel.model import (
    _TAGS,
    BACKBONE,
    EXECUTOR,
    LADDER,
    VOCABULARY,
    Shape,
    load_tokenizer,
    new_model,
    train_tokenizer,
)
from executor_sft.minimodel.stream import (
    BATCH_TOKENS,
    ROW_TOKENS,
    Batch,
    batches,
    conversations,
    encode,
)
from executor_sft.miniworld.dialogues import Dialogue, DialogueTurn, DialogueWriter, RolePrompts
from executor_sft.miniworld.world import World
from router.protocol import parse_decision, parse_turn
from router.protocol.turns import parse_answer
from serving.config.file import load_config, preset

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

MINI = load_config(preset("mini"))
TINY = Shape(width=32, layers=1, feed_forward=32)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Use one thread; tiny models are slower on two."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def dialogues(system: RolePrompts) -> list[Dialogue]:
    """100 conversations of each kind."""
    backbone = itertools.islice(conversations("backbone", system, 0), 200)
    executor = itertools.islice(
        conversations("executor", system, 0, two_searches=True, passages=2), 100
    )
    return [*backbone, *executor]


@pytest.fixture(scope="module")
def tokenizer(dialogues: list[Dialogue]) -> PreTrainedTokenizerFast:
    return train_tokenizer(turn.text for dialogue in dialogues for turn in dialogue)


@pytest.fixture(scope="module")
def packed(tokenizer: PreTrainedTokenizerFast, system: RolePrompts) -> list[Batch]:
    """Three batches of the backbone's conversations."""
    return list(itertools.islice(batches(conversations("backbone", system, 0), tokenizer), 3))


def tiny_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Qwen3ForCausalLM:
    import torch

    torch.manual_seed(seed)
    return new_model(TINY, tokenizer)


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def messages_of(dialogue: Dialogue) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.text} for turn in dialogue]


def test_tags_and_digits_are_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    """A tag is one token anywhere, a digit the same token in every number, and the vocabulary is
    used nearly completely.
    """
    for tag in (*_TAGS, "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"):
        (token,) = ids_of(tokenizer, tag)
        assert token in ids_of(tokenizer, f"Who?{tag}1808")
    for year in ("1808", "8180"):
        tokens = tokenizer.convert_ids_to_tokens(ids_of(tokenizer, f"In {year}, it"))
        assert [token for token in tokens if token.isdigit()] == list(year)
    assert 0.95 * VOCABULARY < len(tokenizer) <= VOCABULARY


@pytest.mark.parametrize(
    "name", ["Grunshorpe", "Flujous Grinour", "The Grunshorpe Ballads", "Wexford-Ng"]
)
def test_a_name_has_the_same_tokens_everywhere(
    tokenizer: PreTrainedTokenizerFast, name: str
) -> None:
    """It may be after a tag, a line break, a word or nothing, and before a tag, a comma or an end;
    so copying is copying tokens.
    """
    spelled = ids_of(tokenizer, name)
    for text in (
        f"The author of it is {name}.",
        f"<answer>{name}</answer>",
        f"<evidence>It was a book.\n{name} wrote it.</evidence>",
        f"<title>Family of {name}</title>",
        f"Who was born first, {name} or Anna?",
        f"1808 {name}, 1857 Anna: earlier",
    ):
        ids = ids_of(tokenizer, text)
        assert any(
            ids[position : position + len(spelled)] == spelled for position in range(len(ids))
        ), text


def test_decoded_turns_are_read_as_written(
    tokenizer: PreTrainedTokenizerFast, dialogues: list[Dialogue]
) -> None:
    """Decoding returns a turn, except for spaces after tags and line breaks, which no parser minds.

    Turns that continue a history, decisions and searches, are encoded to the same tokens again. The
    preset's limits cut none.
    """
    roles = MINI.roles
    limit = {"delegate": roles.delegation, "stop": roles.delegation, "search": roles.execution}
    limit |= {"report": roles.execution, "answer": roles.answer}
    for turn in itertools.chain.from_iterable(dialogues):
        ids = ids_of(tokenizer, turn.text)
        written = tokenizer.decode(ids)
        assert written.replace(" ", "") == turn.text.replace(" ", "")
        if turn.kind in ("delegate", "stop", "search"):
            assert ids_of(tokenizer, written) == ids_of(tokenizer, written.strip()) == ids
        match turn.kind:
            case "delegate" | "stop":
                assert parse_decision(written, limit=8) == parse_decision(turn.text, limit=8)
            case "search" | "report":
                assert parse_turn(written) == parse_turn(turn.text)
            case "answer":
                assert parse_answer(written) == parse_answer(turn.text)
            case _:
                continue
        assert len(ids) < limit[turn.kind].max_tokens


@cache
def shipped_tokenizer() -> PreTrainedTokenizerFast:
    return load_tokenizer(Path(MINI.engines["executor"].path))


@given(text=st.text())
def test_any_text_survives_encoding(text: str) -> None:
    """The alphabet is all bytes; at most a space is added at the beginning and after a line
    break.
    """
    tokenizer = shipped_tokenizer()
    assert tokenizer.decode(ids_of(tokenizer, text)).replace(" ", "") == text.replace(" ", "")


def test_a_conversation_is_encoded_as_the_engine_serves_it(
    tokenizer: PreTrainedTokenizerFast, dialogues: list[Dialogue], system: RolePrompts
) -> None:
    """The encoding equals the chat template's.

    The model's own tokens are its turns with their ends, after the generation prompt. Prompts are
    the preset's.
    """
    for dialogue in dialogues:
        ids, written = encode(dialogue, tokenizer)
        assert ids == tokenizer.apply_chat_template(messages_of(dialogue), return_dict=False)
        model_turns = [turn for turn in dialogue if turn.role == "assistant"]
        meant = [[*ids_of(tokenizer, turn.text), tokenizer.eos_token_id] for turn in model_turns]
        assert [token for token, is_own in zip(ids, written, strict=True) if is_own] == [
            *itertools.chain(*meant)
        ]
        prompt = tokenizer.apply_chat_template(
            messages_of(dialogue[:2]), add_generation_prompt=True, return_dict=False
        )
        assert ids[: written.index(True)] == prompt
    served = [MINI.roles.delegation, MINI.roles.execution, MINI.roles.answer]
    prompts = [Path(role.prompt).read_text("utf-8").strip() for role in served]
    assert prompts == [system.delegation, system.execution, system.answer]


def test_packing_loses_and_repeats_nothing(
    tokenizer: PreTrainedTokenizerFast, system: RolePrompts
) -> None:
    """Every segment of a batch is one whole conversation of the source, and each is used at most
    once. Conversations that were read and not packed yet are those that wait; a conversation too
    long for any row is left out. Rows are nearly full.
    """
    read: Counter[tuple[tuple[int, ...], tuple[bool, ...]]] = Counter()
    long = [
        DialogueTurn("system", "x"),
        DialogueTurn("user", "Who? " * ROW_TOKENS),
        DialogueTurn("answer", "<answer>x</answer>"),
    ]

    def source() -> Iterator[Dialogue]:
        for dialogue in conversations("executor", system, 0, two_searches=True):
            ids, written = encode(dialogue, tokenizer)
            read[tuple(ids), tuple(written)] += 1
            yield dialogue
            yield long

    packed_segments: Counter[tuple[tuple[int, ...], tuple[bool, ...]]] = Counter()
    for batch in itertools.islice(batches(source(), tokenizer), 8):
        assert batch.tokens.shape == (BATCH_TOKENS // ROW_TOKENS, ROW_TOKENS)
        assert (batch.conversation > 0).float().mean() > 0.9
        for row in range(BATCH_TOKENS // ROW_TOKENS):
            packed_segments.update(segments(batch, row))
    assert packed_segments <= read
    assert 0 <= (read - packed_segments).total() <= 64
    assert packed_segments.total() > 100


def segments(batch: Batch, row: int) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    """Return the conversations of a row with their masks; check that positions count from 0 and
    padding is at the end.
    """
    row_segments = []
    numbers = batch.conversation[row]
    for number in range(1, int(numbers.max()) + 1):
        inside = numbers == number
        assert batch.positions[row][inside].tolist() == list(range(int(inside.sum())))
        row_segments.append(
            (tuple(batch.tokens[row][inside].tolist()), tuple(batch.written[row][inside].tolist()))
        )
    padding = numbers == 0
    assert not batch.written[row][padding].any()
    assert numbers.tolist() == [number for number in numbers.tolist() if number] + [0] * int(
        padding.sum()
    )
    return row_segments


def test_a_packed_conversation_has_the_logits_of_a_single_one(
    tokenizer: PreTrainedTokenizerFast, packed: list[Batch]
) -> None:
    """Attention looks back only, and never at another conversation in the row."""
    import torch

    batch = packed[0]
    attention = packed[0].attention()
    sizes = [
        int(count) for row in batch.conversation for count in row.unique(return_counts=True)[1]
    ]
    assert int(attention.sum()) == sum(size * (size + 1) // 2 for size in sizes)
    model = tiny_model(tokenizer)
    rows = {"position_ids": batch.positions[:1], "attention_mask": attention[:1]}
    with torch.inference_mode():
        logits = model(input_ids=batch.tokens[:1], **rows).logits[0]
        for number in range(1, int(batch.conversation[0].max()) + 1):
            inside = batch.conversation[0] == number
            alone = model(input_ids=batch.tokens[:1, inside]).logits[0]
            torch.testing.assert_close(logits[inside], alone, atol=1e-4, rtol=1e-4)


def test_model_sizes_are_those_documented(tokenizer: PreTrainedTokenizerFast) -> None:
    """They are in millions of parameters."""
    documented = {
        BACKBONE: 4.0,
        EXECUTOR: 1.8,
        LADDER["small"]: 0.25,
        LADDER["medium"]: 0.5,
        LADDER["large"]: 1.8,
    }
    for shape, millions in documented.items():
        size = sum(weight.numel() for weight in new_model(shape, tokenizer).parameters())
        assert size == pytest.approx(millions * 1e6, rel=0.1)


class Killed(Exception):
    """End of a training in the middle."""


def test_a_killed_training_resumes_from_its_checkpoint(
    tokenizer: PreTrainedTokenizerFast, packed: list[Batch], tmp_path: Path
) -> None:
    """It ends with the weights of an undisturbed training, even though it restarts from other
    random weights; a further start changes no weights.
    """
    import torch

    from executor_sft.minimodel.training import Schedule, train

    def interrupted() -> Iterator[Batch]:
        yield from packed[:2]
        raise Killed

    schedule = Schedule(steps=3, warm_up=2, checkpoint_every=2)
    undisturbed, killed, resumed, repeated = (tiny_model(tokenizer, seed) for seed in (0, 0, 1, 2))
    train(undisturbed, iter(packed), schedule, tmp_path / "undisturbed", compiled=False)
    with pytest.raises(Killed):
        train(killed, interrupted(), schedule, tmp_path / "killed", compiled=False)
    for model in (resumed, repeated):
        train(model, iter(packed), schedule, tmp_path / "killed", compiled=False)
    weights = undisturbed.state_dict()
    for model in (resumed, repeated):
        assert all(
            torch.equal(weight, weights[name]) for name, weight in model.state_dict().items()
        )
    assert any(
        not torch.equal(weight, weights[name]) for name, weight in killed.state_dict().items()
    )


def test_the_learning_rate_rises_holds_and_falls() -> None:
    """It is linear over the warm-up, constant to the middle, linear over the last half, and never
    0.
    """
    from executor_sft.minimodel.training import Schedule

    schedule = Schedule(steps=1000, peak_rate=2e-3, warm_up=100)
    rates = [schedule.rate(step) for step in range(1000)]
    sampled_rates = [rates[0], rates[49], *rates[99:501], rates[750], rates[999]]
    assert sampled_rates == pytest.approx([2e-5, 1e-3, *[2e-3] * 402, 1e-3, 2e-5])
    assert rates[500:] == sorted(rates[500:], reverse=True)


def test_a_saved_model_is_loaded_unchanged(
    tokenizer: PreTrainedTokenizerFast, dialogues: list[Dialogue], tmp_path: Path
) -> None:
    """Transformers loads it in bf16, with its tokenizer and chat template; generation ends at the
    end of a turn.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from executor_sft.minimodel.training import save

    model = tiny_model(tokenizer)
    save(model, tokenizer, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    assert all(
        torch.equal(weight, loaded.state_dict()[name])
        for name, weight in model.state_dict().items()
    )
    assert loaded.dtype == torch.bfloat16
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id
    for dialogue in dialogues[::10]:
        assert (
            reloaded.apply_chat_template(messages_of(dialogue), return_dict=False)
            == encode(dialogue, tokenizer)[0]
        )


@pytest.mark.parametrize("name", ["executor", "teacher"])
def test_a_shipped_model_fits_its_tokenizer(name: str, system: RolePrompts) -> None:
    """It writes the first search of unseen sub-queries, which it could not with other tokens."""
    from transformers import Qwen3ForCausalLM

    folder = Path(MINI.engines[name].path)
    model = Qwen3ForCausalLM.from_pretrained(folder).float().eval()
    tokenizer = load_tokenizer(folder)
    right = 0
    for dialogue in itertools.islice(
        DialogueWriter(World(11, "test"), system).executor(two_searches=True), 10
    ):
        prompt_ids = tokenizer.apply_chat_template(
            messages_of(dialogue[:2]),
            add_generation_prompt=True,
            return_dict=False,
            return_tensors="pt",
        )
        (written,) = model.generate(prompt_ids, max_new_tokens=64, do_sample=False)[
            :, prompt_ids.shape[1] :
        ].tolist()
        right += written[:-1] == ids_of(tokenizer, dialogue[2].text)
    assert right >= 8
