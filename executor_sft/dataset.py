"""`rolegate sft dataset`: filtered samples as the very tokens that the serving engine will see.

A row is one turn of the model: the prompt as the engine reads it there, without loss, and the turn
itself, with loss: the tokens that the engine returned, or, where it returned none of this model,
the text tokenised again. TRL trains on rows.jsonl as it is, by `input_ids` with `labels` or with
`assistant_masks`; `messages` has the same as text.

Chat templates show earlier turns in other words than these were written in (thinking is dropped),
so only a row for each turn trains on what serving sees (TBSS appendix D). Passages, prompts and
corrections carry no loss, and turns that were corrected have no row.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from executor_sft.command import POSITIONAL, StepOptions, show
from executor_sft.filter import RESULT as SAMPLES
from executor_sft.filter import FilteredSample, Stratum
from executor_sft.jsonl import read_jsonl
from executor_sft.step import Step
from router.errors import BadConfig
from router.models import Completion, Message
from router.models.model import TokenIds, end_at_stop
from router.protocol import parse_decision, parse_turn
from router.protocol.decision import Dispatch, Stop
from router.protocol.prompts import without_system_role
from router.protocol.turns import ExecutionTurn, ReportTurn, SearchTurn
from router.search.executor import STOP
from router.table.table_text import parse_table_turn
from router.trace import Conversation, Execution
from serving.dependencies import need
from serving.json_lines import write_json_lines

RESULT = "rows.jsonl"
NEEDED = ("transformers",)
"""Modules that are loaded late, so that `--help` can do without."""
NO_LOSS = -100
LEARNT = ("search", "report", "dispatch", "stop")
"""The turns that have a row."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)
"""Those of a model's folder that decide about token ids, as far as they are there."""
_THOUGHT = "</think>"
_TURN = "what was said"


class Options(StepOptions, frozen=True, kw_only=True):
    """Options of the step."""

    filtered: Annotated[Path, POSITIONAL, Meta(description="the folder of `rolegate sft filter`")]
    model: Annotated[Path, Meta(description="the student's folder, with its tokenizer")]
    role: Annotated[Literal["execution", "delegation"], Meta(description="whose turns")] = (
        "execution"
    )
    max_length: Annotated[
        int, Meta(ge=1, description="tokens of a row; one that is longer is an error")
    ] = 4096
    thinking: (
        Annotated[bool, Meta(description="true or false, as of that role in the config")] | None
    ) = None
    system_role: Annotated[bool, Meta(description="the same")] = True


class TrainingRow(msgspec.Struct, frozen=True):
    """A prompt that the engine shows the model, and the turn that the model is to write."""

    input_ids: tuple[int, ...]
    """Token ids of the conversation before the turn, exactly as the serving engine sees it, and of
    the turn, its end included.
    """
    labels: tuple[int, ...]
    """Those of the turn, after -100 for each token before it, which carries no loss."""
    assistant_masks: tuple[int, ...]
    """1 for each token of the turn, 0 before it."""
    attention_mask: tuple[int, ...]
    """All ones."""
    messages: tuple[dict[str, str | bool], ...]
    """The same as text: each with `role`, `content`, and `train`, which is true of the last
    one, the turn.
    """
    turn: int
    """The number of the turn in its trajectory, from 0."""
    trajectory: int
    """The number of its trajectory among the filtered ones, from 0."""
    stratum: Stratum
    question_id: str
    as_returned: bool = False
    """These are the very tokens that the engine returned; else the text was tokenised again."""

    def __post_init__(self) -> None:
        if not self.completion_ids or len(self.input_ids) != len(self.labels):
            raise ValueError("nothing to learn, or labels for other tokens")

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """Token ids of the turn."""
        return tuple(label for label in self.labels if label != NO_LOSS)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids before it."""
        return self.input_ids[: -len(self.completion_ids)]


class _Generation(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


class ServedTokens:
    """Tokens of a conversation as vLLM makes them for `/v1/chat/completions`."""

    def __init__(
        self, model: Path, *, thinking: bool | None = None, system_role: bool = True
    ) -> None:
        """`model`: its folder. The others: as of the role that serves. Raises `BadConfig`."""
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
        except (OSError, ValueError) as error:
            raise BadConfig(f"{model}: holds no tokenizer that can be loaded ({error}).") from None
        if self._tokenizer.chat_template is None:
            raise BadConfig(
                f"{model}: its tokenizer has no chat template; add chat_template.jinja."
            )
        self._model = model
        self._system_role = system_role
        self._switch = {} if thinking is None else {"enable_thinking": thinking}
        self._thinks = "<think>" in self._tokenizer.chat_template if thinking is None else thinking

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt that the engine reads before it writes the next turn."""
        return tuple(self._rendered(messages, tokenize=True, add_generation_prompt=True))

    def completion(self, output: Completion) -> tuple[int, ...]:
        """The tokens that the engine is to write: the turn up to its last tag, and the template's
        end of turn.

        Reasoning stands in a thinking block where the role thinks, and is left out where it does
        not.
        """
        return (
            tuple(self._tokenizer.encode(self._written(output), add_special_tokens=False))
            + self._end
        )

    def row(self, messages: Sequence[Message], output: Completion) -> tuple[TokenIds, bool]:
        """The tokens of prompt and turn; whether they are those that the engine returned, which
        they are where these are the same text, in whichever tokens: it may have told none, or those
        of another model.
        """
        made = TokenIds(self.prompt(messages), self.completion(output))
        told = output.tokens
        if told is msgspec.UNSET:
            return made, False
        ended = (
            told.completion
            if told.completion[-1:] == self._end[-1:]
            else told.completion + self._end
        )
        returned = TokenIds(told.prompt, ended)
        same = self._texts(returned) == self._texts(made)
        return (returned, True) if same else (made, False)

    def _texts(self, tokens: TokenIds) -> list[str]:
        return [self._tokenizer.decode(list(ids)) for ids in (tokens.prompt, tokens.completion)]

    def _written(self, output: Completion) -> str:
        thought, closed, said = output.text.rpartition(_THOUGHT)
        said, _ = end_at_stop(said, STOP, "stop", None)
        if not self._thinks:
            return said.lstrip() if closed else said
        if closed or not output.reasoning.strip():
            return thought + closed + said
        opening = "" if self._thinking_is_open else "<think>\n"
        return f"{opening}{output.reasoning.strip()}\n{_THOUGHT}\n\n{said.lstrip()}"

    @cached_property
    def _thinking_is_open(self) -> bool:
        """True where the template itself begins the thinking block."""
        prompt: str = self._rendered(
            [Message("user", _TURN)], tokenize=False, add_generation_prompt=True
        )
        return prompt.rstrip().endswith("<think>")

    @cached_property
    def _end(self) -> tuple[int, ...]:
        """The tokens that the template puts after a turn, up to the one at which the engine
        stops.
        """
        said = [Message("user", "?"), Message("assistant", _TURN)]
        after = self._rendered(said, tokenize=False).rpartition(_TURN)[2]
        ids = self._tokenizer.encode(after, add_special_tokens=False)
        path = self._model / "generation_config.json"
        named = (
            msgspec.json.decode(path.read_bytes(), type=_Generation).eos_token_id
            if path.exists()
            else None
        )
        ends = {self._tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])} - {
            None
        }
        for place, token in enumerate(ids):
            if token in ends:
                return tuple(ids[: place + 1])
        raise BadConfig(
            f"{self._model}: its chat template ends turns with {after!r}, at which no engine stops."
        )

    def _rendered(self, messages: Sequence[Message], **how: bool) -> Any:
        sent = messages if self._system_role else without_system_role(messages)
        chat = msgspec.to_builtins(list(sent))
        return self._tokenizer.apply_chat_template(chat, return_dict=False, **how, **self._switch)


def run(options: Options) -> int:
    """Run the step; the exit status."""
    need("sft", *NEEDED)
    settings = {
        name: getattr(options, name) for name in ("role", "max_length", "thinking", "system_role")
    }
    inputs = {"filtered": options.filtered, **tokenizer_files(options.model)}
    step = Step.begin(options.out, "dataset", inputs, settings)
    if (manifest := step.finished) is None:
        tokens = ServedTokens(
            options.model, thinking=options.thinking, system_role=options.system_role
        )
        kind = Execution if options.role == "execution" else Conversation
        rows, turns = rows_of(
            (one for one in read_samples(options.filtered) if isinstance(one.work, kind)), tokens
        )
        _check(rows, turns, options.max_length)
        write_json_lines(options.out / RESULT, rows)
        figures = {
            "rows": len(rows),
            "trajectories": len({row.trajectory for row in rows}),
            "turns": dict(turns),
            "as_returned": sum(row.as_returned for row in rows),
            "prompt_tokens": sum(len(row.prompt_ids) for row in rows),
            "completion_tokens": sum(len(row.completion_ids) for row in rows),
            "longest": max(len(row.input_ids) for row in rows),
        }
        manifest = step.finish(figures, [RESULT])
    show(manifest.figures, as_json=options.json)
    return 0


def tokenizer_files(model: Path) -> dict[str, Path]:
    """The files in a model's folder that decide about token ids, by name. Raises `BadConfig`
    where there is none.
    """
    files = {name: model / name for name in TOKENIZER_FILES if (model / name).is_file()}
    if "tokenizer_config.json" not in files:
        raise BadConfig(
            f"{model}: holds no tokenizer; name the folder of a model, with its "
            "tokenizer_config.json."
        )
    return files


def read_samples(path: Path) -> Iterator[FilteredSample]:
    """The lines of a `filtered.jsonl`, or of the one in a folder. Raises `BadConfig` naming a
    line that is not one.
    """
    advice = "name the folder of `rolegate sft filter`"
    return (sample for _, sample in read_jsonl(path, FilteredSample, advice, SAMPLES))


def read_rows(path: Path) -> list[TrainingRow]:
    """The rows in order. Raises `BadConfig` for a line that is none, and where there is none."""
    rows = [row for _, row in read_jsonl(path, TrainingRow, "make the data set again")]
    if not rows:
        raise BadConfig(f"{path}: has no rows; make the data set again.")
    return rows


def rows_of(
    samples: Iterable[FilteredSample], tokens: ServedTokens
) -> tuple[list[TrainingRow], Counter[str]]:
    """A row for each turn in `LEARNT`, and the counts of all turns, those without a row by the
    reason.
    """
    rows: list[TrainingRow] = []
    turns: Counter[str] = Counter()
    for number, sample in enumerate(samples):
        work = sample.work
        executes = partial(_kind, parse_table_turn if sample.ask else parse_turn)
        conversation, kind_of = (
            (work, _decision) if isinstance(work, Conversation) else (work.conversation, executes)
        )
        for turn, (messages, output, reply) in enumerate(_turns(conversation)):
            kind = "cut off" if output.finish_reason == "length" else kind_of(output, reply)
            if kind in LEARNT and isinstance(work, Execution) and not _as_served(work, turn):
                kind = "shown passages that the trace lost"
            if kind in LEARNT:
                ids, returned = tokens.row(messages, output)
                said = [{**msgspec.structs.asdict(message), "train": False} for message in messages]
                written, _ = end_at_stop(output.text, STOP, "stop", None)
                said.append({"role": "assistant", "content": written, "train": True})
                about = turn, number, sample.stratum, sample.question_id, returned
                rows.append(training_row(ids, said, *about))
            turns[kind] += 1
    return rows, turns


def training_row(
    ids: TokenIds, messages: Sequence[dict[str, str | bool]], *about: Any
) -> TrainingRow:
    """The row of a prompt and a turn. `about`: its further fields, from `turn` on."""
    before = len(ids.prompt)
    turn = len(ids.completion)
    labels = (NO_LOSS,) * before + ids.completion
    masks = (0,) * before + (1,) * turn
    return TrainingRow(
        ids.prompt + ids.completion, labels, masks, (1,) * (before + turn), tuple(messages), *about
    )


def _turns(
    conversation: Conversation,
) -> Iterator[tuple[tuple[Message, ...], Completion, Message | None]]:
    """The messages before each of the model's turns, the turn, and the reply to it."""
    messages = conversation.messages
    places = [place for place, message in enumerate(messages) if message.role == "assistant"]
    for place, output in zip(places, conversation.outputs, strict=True):
        yield messages[:place], output, messages[place + 1] if place + 1 < len(messages) else None


def _kind(parse: Callable[[str], ExecutionTurn], output: Completion, reply: Message | None) -> str:
    """`search` or `report`, or the reason why an executor's turn is not to be learnt."""
    match parse(output.text):
        case SearchTurn() if reply is not None and reply.content.startswith("<documents>"):
            return "search"
        case ReportTurn() if reply is None:
            return "report"
        case SearchTurn() | ReportTurn():
            return "out of turn"
        case _:
            return "malformed"


def _decision(output: Completion, reply: Message | None) -> str:
    """`dispatch` or `stop`, or the reason why a delegator's turn is not to be learnt."""
    match parse_decision(output.text, limit=1):
        case Dispatch() if reply is not None and reply.content.startswith("<search_results>"):
            return "dispatch"
        case Stop() if reply is None:
            return "stop"
        case Dispatch() | Stop():
            return "out of turn"
        case _:
            return "malformed"


def _as_served(execution: Execution, turn: int) -> bool:
    """True where the trace shows all that the model saw in a turn: passages that gave way later
    are missing from it.
    """
    whole = not any(search.dropped_passages for search in execution.searches)
    return whole or turn in (0, len(execution.conversation.outputs) - 1)


def _check(rows: Sequence[TrainingRow], turns: Counter[str], max_length: int) -> None:
    if not rows:
        raise BadConfig(
            "Nothing to learn: no turn that passed the filter searched or reported "
            f"(turns: {dict(turns)}); look at "
            "the tables of `rolegate sft filter`."
        )
    if long := [len(row.input_ids) for row in rows if len(row.input_ids) > max_length]:
        raise BadConfig(
            f"{len(long)} of {len(rows)} rows are longer than {max_length} tokens, the "
            f"longest has {max(long)}; raise "
            "--max-length, or show fewer or shorter passages. Nothing is cut: that would "
            "lose the report."
        )
