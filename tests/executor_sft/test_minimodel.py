import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from executor_sft.minimodel.evaluation import turn_accuracy
from executor_sft.minimodel.model import (
    BACKBONE,
    EXECUTOR,
    LADDER,
    VOCABULARY,
    Shape,
    load_tokenizer,
    new_model,
    train_tokenizer,
)
from executor_sft.minimodel.stream import BATCH_TOKENS, ROW_TOKENS, Batch, batches, conversations, encode
from executor_sft.minimodel.training import Schedule, save, train
from executor_sft.miniworld.dialogues import Dialogue, DialogueWriter, RolePrompts, Turn
from executor_sft.miniworld.world import World
from router.protocol.decision import parse_decision
from router.protocol.turns import parse_answer, parse_turn
from serving.config.file import load_config, preset

TINY = Shape(width=32, layers=1, feed_forward=32)
TAGS = [
    "<search>",
    "</search>",
    "<answer>",
    "</answer>",
    "<evidence>",
    "</evidence>",
    "<search_results>",
    "</search_results>",
    "<documents>",
    "</documents>",
    "</document>",
    "</result>",
    "<request>",
    "<title>",
    "<text>",
    "<stop/>Enough evidence<stop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models are slower on two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def dialogues(system: RolePrompts) -> list[Dialogue]:
    """150 conversations of each kind."""
    backbone = itertools.islice(conversations("backbone", system, 0), 300)
    executor = itertools.islice(conversations("executor", system, 0, two_searches=True, passages=2), 150)
    return [*backbone, *executor]


@pytest.fixture(scope="module")
def tokenizer(dialogues: list[Dialogue]) -> PreTrainedTokenizerFast:
    return train_tokenizer(turn.text for dialogue in dialogues for turn in dialogue)


def tiny_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return new_model(TINY, tokenizer)


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def messages_of(dialogue: Dialogue) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.text} for turn in dialogue]


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_is_one_token(tokenizer: PreTrainedTokenizerFast, tag: str) -> None:
    """Alone and in the middle of a text."""
    (token,) = ids_of(tokenizer, tag)

    assert token in ids_of(tokenizer, f"Who?{tag}1808")


def test_the_vocabulary_is_small(tokenizer: PreTrainedTokenizerFast) -> None:
    """No larger than asked for, and used up nearly whole by 450 conversations."""
    assert 0.95 * VOCABULARY < len(tokenizer) <= VOCABULARY


@pytest.mark.parametrize("name", ["Grunshorpe", "Flujous Grinour", "The Grunshorpe Ballads", "Wexford-Ng"])
def test_a_name_is_spelled_alike_wherever_it_stands(tokenizer: PreTrainedTokenizerFast, name: str) -> None:
    """After a tag, a line break, a word or nothing, before a tag, a comma or an end: so copying is copying tokens."""
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
        assert any(ids[at : at + len(spelled)] == spelled for at in range(len(ids))), text


def test_digits_stand_apart(tokenizer: PreTrainedTokenizerFast) -> None:
    """Each digit of a year is a token, the same one in every year."""
    one, other = (tokenizer.convert_ids_to_tokens(ids_of(tokenizer, f"In {year}, it")) for year in (1808, 8180))

    assert [token for token in one if token.isdigit()] == list("1808")
    assert [token for token in other if token.isdigit()] == list("8180")


def test_what_the_model_writes_is_read_as_meant(tokenizer: PreTrainedTokenizerFast, dialogues: list[Dialogue]) -> None:
    """Decoding gives back a turn but for spaces after tags and line breaks, which no parser minds. What goes on as the
    next turn's history, so decisions and searches, is encoded to the same tokens again."""
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


@pytest.mark.parametrize("text", ["Łódź, 東京 & <b>x</b>", "a\n\n b", "<searching>", "  two  spaces", "𝒳 \x00"])
def test_any_text_survives(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    """The alphabet is all bytes; at most a space is added at the beginning and after a line break."""
    assert tokenizer.decode(ids_of(tokenizer, text)).replace(" ", "") == text.replace(" ", "")


def test_a_conversation_is_encoded_as_the_chat_template_does(
    tokenizer: PreTrainedTokenizerFast, dialogues: list[Dialogue]
) -> None:
    """The serving engine, which uses the template, sees what the training saw."""
    for dialogue in dialogues:
        assert encode(dialogue, tokenizer)[0] == tokenizer.apply_chat_template(messages_of(dialogue), return_dict=False)


def test_the_models_own_tokens_are_marked(tokenizer: PreTrainedTokenizerFast, dialogues: list[Dialogue]) -> None:
    """Its turns with their ends and without their headers: what follows the template's generation prompt."""
    for dialogue in dialogues:
        ids, written = encode(dialogue, tokenizer)
        own = [turn for turn in dialogue if turn.role == "assistant"]
        meant = [[*ids_of(tokenizer, turn.text), tokenizer.eos_token_id] for turn in own]
        assert [token for token, is_own in zip(ids, written, strict=True) if is_own] == [*itertools.chain(*meant)]
        prompt = tokenizer.apply_chat_template(messages_of(dialogue[:2]), add_generation_prompt=True, return_dict=False)
        assert ids[: written.index(True)] == prompt


def test_the_gold_turns_fit_the_presets_limits(tokenizer: PreTrainedTokenizerFast, dialogues: list[Dialogue]) -> None:
    """No role of the preset `mini` is cut off in a turn that it was trained to write."""
    roles = load_config(preset("mini")).roles
    limit = {"delegate": roles.delegation, "stop": roles.delegation, "search": roles.execution}
    limit |= {"report": roles.execution, "answer": roles.answer}

    for turn in itertools.chain.from_iterable(dialogues):
        if turn.role == "assistant":
            assert len(ids_of(tokenizer, turn.text)) < limit[turn.kind].max_tokens


def test_the_trained_prompts_are_the_served_ones(system: RolePrompts) -> None:
    roles = load_config(preset("mini")).roles
    served = [
        Path(role.prompt).read_text("utf-8").strip() for role in (roles.delegation, roles.execution, roles.answer)
    ]

    assert served == [system.delegation, system.execution, system.answer]


def test_packing_loses_and_doubles_nothing(tokenizer: PreTrainedTokenizerFast, system: RolePrompts) -> None:
    """Every segment of a batch is one whole conversation of the source, each used at most once; what was read and not
    yet packed is no more than waits."""
    read: Counter[tuple[tuple[int, ...], tuple[bool, ...]]] = Counter()

    def source() -> Iterator[Dialogue]:
        for dialogue in conversations("executor", system, 0, two_searches=True):
            ids, written = encode(dialogue, tokenizer)
            read[tuple(ids), tuple(written)] += 1
            yield dialogue

    packed: Counter[tuple[tuple[int, ...], tuple[bool, ...]]] = Counter()
    for batch in itertools.islice(batches(source(), tokenizer), 12):
        assert batch.tokens.shape == (BATCH_TOKENS // ROW_TOKENS, ROW_TOKENS)
        for row in range(BATCH_TOKENS // ROW_TOKENS):
            packed.update(segments(batch, row))

    assert packed <= read
    assert 0 <= (read - packed).total() <= 64
    assert packed.total() > 200


def segments(batch: Batch, row: int) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    """The conversations of a row, with their marks; checks that positions count from 0 and padding is at the end."""
    found = []
    numbers = batch.conversation[row]
    for number in range(1, int(numbers.max()) + 1):
        inside = numbers == number
        assert batch.positions[row][inside].tolist() == list(range(int(inside.sum())))
        found.append((tuple(batch.tokens[row][inside].tolist()), tuple(batch.written[row][inside].tolist())))
    padding = numbers == 0
    assert not batch.written[row][padding].any()
    assert numbers.tolist() == [number for number in numbers.tolist() if number] + [0] * int(padding.sum())
    return found


def test_rows_are_nearly_full(tokenizer: PreTrainedTokenizerFast, system: RolePrompts) -> None:
    """More than 19 of 20 places hold a token."""
    packed = itertools.islice(batches(conversations("backbone", system, 0), tokenizer), 5)
    shares = [float((batch.conversation > 0).float().mean()) for batch in packed]

    assert min(shares) > 0.95


def test_a_conversation_longer_than_a_row_is_left_out(tokenizer: PreTrainedTokenizerFast, system: RolePrompts) -> None:
    """The others are packed as if it were not there."""
    long = [Turn("system", "x"), Turn("user", "Who? " * ROW_TOKENS), Turn("answer", "<answer>x</answer>")]

    def with_long() -> Iterator[Dialogue]:
        for dialogue in conversations("backbone", system, 0):
            yield long
            yield dialogue

    one = next(batches(with_long(), tokenizer))
    other = next(batches(conversations("backbone", system, 0), tokenizer))

    assert torch.equal(one.tokens, other.tokens)


def test_attention_stays_within_one_conversation(tokenizer: PreTrainedTokenizerFast, system: RolePrompts) -> None:
    """Looking back only, and never at a neighbour in the row."""
    batch = next(batches(conversations("backbone", system, 0), tokenizer))
    attention = batch.attention()

    assert attention.shape == (BATCH_TOKENS // ROW_TOKENS, 1, ROW_TOKENS, ROW_TOKENS)
    for row, looker, seen in attention[:, 0].nonzero()[::37].tolist():
        assert seen <= looker
        assert batch.conversation[row, seen] == batch.conversation[row, looker]
    sizes = [int(count) for row in batch.conversation for count in row.unique(return_counts=True)[1]]
    assert int(attention.sum()) == sum(size * (size + 1) // 2 for size in sizes)


@torch.inference_mode()
def test_a_packed_conversation_is_computed_as_if_it_were_alone(
    tokenizer: PreTrainedTokenizerFast, system: RolePrompts
) -> None:
    """Its neighbours in the row change none of its logits."""
    model = tiny_model(tokenizer)
    batch = next(batches(conversations("backbone", system, 0), tokenizer))
    packed = model(
        input_ids=batch.tokens[:1], position_ids=batch.positions[:1], attention_mask=batch.attention()[:1]
    ).logits[0]

    for number in range(1, int(batch.conversation[0].max()) + 1):
        inside = batch.conversation[0] == number
        alone = model(input_ids=batch.tokens[:1, inside]).logits[0]
        torch.testing.assert_close(packed[inside], alone, atol=1e-4, rtol=1e-4)


def test_the_sizes_are_those_documented(tokenizer: PreTrainedTokenizerFast) -> None:
    """In millions of parameters."""
    documented = {BACKBONE: 4.0, EXECUTOR: 1.8, LADDER["small"]: 0.25, LADDER["medium"]: 0.5, LADDER["large"]: 1.8}
    for shape, millions in documented.items():
        size = sum(weight.numel() for weight in new_model(shape, tokenizer).parameters())
        assert size == pytest.approx(millions * 1e6, rel=0.1)


class Killed(Exception):
    """The end of a run that was not meant to end."""


def interrupted(source: Iterator[Batch], after: int) -> Iterator[Batch]:
    """The first batches of `source`, and then the end of the run."""
    yield from itertools.islice(source, after)
    raise Killed


def test_a_killed_run_goes_on_where_its_checkpoint_was(
    tokenizer: PreTrainedTokenizerFast, system: RolePrompts, tmp_path: Path
) -> None:
    """It ends with the weights of an undisturbed run, though it is begun again from other random weights, and though a
    half-written checkpoint lies about."""
    schedule = Schedule(steps=3, warm_up=2, checkpoint_every=2)
    packed = list(itertools.islice(batches(conversations("backbone", system, 0), tokenizer), 3))
    undisturbed, killed, resumed = (tiny_model(tokenizer, seed) for seed in (0, 0, 1))
    train(undisturbed, iter(packed), schedule, tmp_path / "undisturbed", compiled=False)

    with pytest.raises(Killed):
        train(killed, interrupted(iter(packed), 2), schedule, tmp_path / "killed", compiled=False)
    (tmp_path / "killed" / "checkpoint.tmp").write_bytes(b"half a check")
    train(resumed, iter(packed), schedule, tmp_path / "killed", compiled=False)

    weights = undisturbed.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in resumed.state_dict().items())
    assert any(not torch.equal(weight, weights[name]) for name, weight in killed.state_dict().items())


def test_a_finished_run_is_not_trained_further(
    tokenizer: PreTrainedTokenizerFast, system: RolePrompts, tmp_path: Path
) -> None:
    """Starting it again changes no weight."""
    packed = list(itertools.islice(batches(conversations("backbone", system, 0), tokenizer), 1))
    model, again = tiny_model(tokenizer, 0), tiny_model(tokenizer, 1)
    for one in (model, again):
        train(one, iter(packed), Schedule(steps=1), tmp_path, compiled=False)

    weights = model.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in again.state_dict().items())


def test_the_learning_rate_rises_holds_and_falls() -> None:
    """Linearly over the warm-up, constant to the middle, linearly over the last half, and never to nothing."""
    schedule = Schedule(steps=1000, peak_rate=2e-3, warm_up=100)
    rates = [schedule.rate(step) for step in range(1000)]

    assert rates[0] == pytest.approx(2e-5)
    assert rates[49] == pytest.approx(1e-3)
    assert rates[99:501] == [pytest.approx(2e-3)] * 402
    assert rates[750] == pytest.approx(1e-3)
    assert rates[999] == pytest.approx(2e-5)
    assert rates[500:] == sorted(rates[500:], reverse=True)


def overfitted(dialogue: Dialogue, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A tiny model that knows one conversation by heart."""
    model = tiny_model(tokenizer)
    ids = torch.tensor([encode(dialogue, tokenizer)[0]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(80):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def test_turns_are_right_only_in_every_token(tokenizer: PreTrainedTokenizerFast, system: RolePrompts) -> None:
    """A model that knows a conversation by heart writes each of its turns, told apart by kind and place; with one word
    changed in one turn it misses that one alone, and a model of random weights misses all."""
    sample = conversations("executor", system, 0, two_searches=True, passages=1)
    dialogue = next(dialogue for dialogue in sample if len(dialogue) == 7)
    model = overfitted(dialogue, tokenizer)
    changed = [*dialogue[:-1], Turn("report", dialogue[-1].text.replace("</answer>", " x</answer>"))]

    right = {"report 1": (1, 1), "search 1": (1, 1), "search 2": (1, 1)}
    assert turn_accuracy(model, tokenizer, [dialogue]) == right
    assert turn_accuracy(model, tokenizer, [changed, dialogue]) == {
        "report 1": (1, 2),
        "search 1": (2, 2),
        "search 2": (2, 2),
    }
    untrained = turn_accuracy(tiny_model(tokenizer), tokenizer, [dialogue])
    assert untrained == dict.fromkeys(right, (0, 1))


def test_a_saved_model_is_loaded_as_it_was(
    tokenizer: PreTrainedTokenizerFast, dialogues: list[Dialogue], tmp_path: Path
) -> None:
    """By transformers, in bf16, with its tokenizer and chat template; generation ends at the end of a turn."""
    model = tiny_model(tokenizer)
    save(model, tokenizer, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)

    assert all(torch.equal(weight, loaded.state_dict()[name]) for name, weight in model.state_dict().items())
    assert loaded.dtype == torch.bfloat16
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id
    for dialogue in dialogues[::10]:
        assert again.apply_chat_template(messages_of(dialogue), return_dict=False) == encode(dialogue, tokenizer)[0]


def test_the_demo_has_one_tokenizer() -> None:
    """Its two models were trained on the same tokens; the teacher has tokens of its own."""
    engines = load_config(preset("mini")).engines
    files = {Path(engines[name].path, "tokenizer.json").read_bytes() for name in ("backbone", "executor")}

    assert set(engines) == {"backbone", "executor", "teacher"}
    assert len(files) == 1


@pytest.mark.parametrize("name", ["executor", "teacher"])
def test_a_shipped_model_reads_with_its_own_tokenizer(name: str, system: RolePrompts) -> None:
    """It writes the first search of unseen sub-queries, which it could not with tokens that are not its own."""
    folder = Path(load_config(preset("mini")).engines[name].path)
    model = Qwen3ForCausalLM.from_pretrained(folder).float().eval()
    dialogues = itertools.islice(DialogueWriter(World(11, "test"), system).executor(two_searches=True), 20)

    right, of = turn_accuracy(model, load_tokenizer(folder), dialogues)["search 1"]

    assert right > 0.8 * of
