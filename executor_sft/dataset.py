"""`rolegate sft dataset`: turn filtered samples into the tokens that the serving engine sees.

A row is one turn of the model: the prompt as the engine reads it, without loss, and the turn, with
loss. The turn's tokens are those that the engine returned or, if it returned none of this model,
the tokenized text. TRL trains on rows.jsonl as it is, by `input_ids` with `labels` or with
`assistant_masks`; `messages` has the same as text.

Chat templates show earlier turns in a different form than the model wrote them (thinking is
dropped), so only a row per turn trains on what serving sees (TBSS appendix D). Passages, prompts
and corrections carry no loss, and turns that were corrected have no row.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from executor_sft.command import StepOptions, show
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
from serving.cli.command import POSITIONAL
from serving.dependencies import need
from serving.json_lines import write_json_lines

RESULT = "rows.jsonl"
NEEDED = ("transformers",)
"""Modules that are imported late, so that `--help` works without them."""
NO_LOSS = -100
LEARNT = ("search", "report", "dispatch", "stop")
"""Kinds of turns that have a row."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)
"""Files of a model's folder that determine token ids; some may be missing."""
_THOUGHT = "</think>"
_TURN = "what was said"


class Options(StepOptions, frozen=True, kw_only=True):
    """Options of the step."""

    filtered: Annotated[Path, POSITIONAL]
    """the folder of `rolegate sft filter`"""
    model: Path
    """the student's folder, with its tokenizer"""
    role: Literal["execution", "delegation"] = "execution"
    """role whose turns are learnt"""
    thinking: bool | None = None
    """true or false, as set for the role in the config"""
    system_role: bool = True
    """true or false, as set for the role in the config"""


class TrainingRow(msgspec.Struct, frozen=True):
    """A prompt as the engine shows it to the model, and the turn that the model learns to write."""

    input_ids: tuple[int, ...]
    """Token ids of the conversation before the turn, exactly as the serving engine sees it, and of
    the turn with its end.
    """
    labels: tuple[int, ...]
    """Token ids of the turn, after a -100 (no loss) for each token before it."""
    assistant_masks: tuple[int, ...]
    """1 for each token of the turn, 0 before it."""
    attention_mask: tuple[int, ...]
    """All ones."""
    messages: tuple[dict[str, str | bool], ...]
    """Conversation and turn as text: `role`, `content`, and `train`, which is true for the
    turn.
    """
    turn: int
    """Number of the turn in its trajectory, from 0."""
    trajectory: int
    """Number of the trajectory among the filtered ones, from 0."""
    stratum: Stratum
    question_id: str
    as_returned: bool = False
    """True if the engine returned these tokens; False if the text was tokenized."""

    def __post_init__(self) -> None:
        if not self.completion_ids or len(self.input_ids) != len(self.labels):
            raise ValueError("no completion, or labels of another length than input_ids")

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """Token ids of the turn."""
        return tuple(label for label in self.labels if label != NO_LOSS)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids before the turn."""
        return self.input_ids[: -len(self.completion_ids)]


class _Generation(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


class ServedTokens:
    """Tokenizes conversations as vLLM does for `/v1/chat/completions`."""

    def __init__(
        self,
        model: Path,
        *,
        thinking: bool | None = None,
        system_role: bool = True,
    ) -> None:
        """Load the tokenizer of the folder `model`. `thinking`, `system_role`: as set for the
        role that serves. Raises `BadConfig`.
        """
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
        except (OSError, ValueError) as error:
            raise BadConfig(f"{model}: its tokenizer cannot be loaded ({error}).") from None
        if self._tokenizer.chat_template is None:
            raise BadConfig(
                f"{model}: its tokenizer has no chat template; add chat_template.jinja."
            )
        self._model = model
        self._system_role = system_role
        self._switch = {} if thinking is None else {"enable_thinking": thinking}
        self._thinks = "<think>" in self._tokenizer.chat_template if thinking is None else thinking

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the prompt that the engine reads before it writes the next turn."""
        return tuple(self._rendered(messages, tokenize=True, add_generation_prompt=True))

    def completion(self, output: Completion) -> tuple[int, ...]:
        """Return the tokens of a turn: its text up to the last tag, and the template's end of turn.

        Reasoning becomes a thinking block if the role thinks, and is left out if not.
        """
        written = self._tokenizer.encode(self._written(output), add_special_tokens=False)
        return tuple(written) + self._end

    def row(self, messages: Sequence[Message], output: Completion) -> tuple[TokenIds, bool]:
        """Return the tokens of prompt and turn, and whether the engine returned them.

        The engine's tokens are taken only if they decode to the expected text: it may have
        returned none, or those of another model.
        """
        made = TokenIds(self.prompt(messages), self.completion(output))
        if output.tokens is msgspec.UNSET:
            return made, False
        completion = output.tokens.completion
        if completion[-1:] != self._end[-1:]:
            completion += self._end
        returned = TokenIds(output.tokens.prompt, completion)
        same = self._texts(returned) == self._texts(made)
        return (returned, True) if same else (made, False)

    def _texts(self, tokens: TokenIds) -> list[str]:
        return [self._tokenizer.decode(list(ids)) for ids in (tokens.prompt, tokens.completion)]

    def _written(self, output: Completion) -> str:
        thought, closed, reply = output.text.rpartition(_THOUGHT)
        reply, _ = end_at_stop(reply, STOP, "stop", None)
        if not self._thinks:
            return reply.lstrip() if closed else reply
        if closed or not output.reasoning.strip():
            return thought + closed + reply
        opening = "" if self._thinking_is_open else "<think>\n"
        return f"{opening}{output.reasoning.strip()}\n{_THOUGHT}\n\n{reply.lstrip()}"

    @cached_property
    def _thinking_is_open(self) -> bool:
        """True if the template itself opens the thinking block."""
        prompt: str = self._rendered(
            [Message("user", _TURN)],
            tokenize=False,
            add_generation_prompt=True,
        )
        return prompt.rstrip().endswith("<think>")

    @cached_property
    def _end(self) -> tuple[int, ...]:
        """The tokens that the template puts after a turn, up to the one at which the engine
        stops.
        """
        dialogue = [Message("user", "?"), Message("assistant", _TURN)]
        after = self._rendered(dialogue, tokenize=False).rpartition(_TURN)[2]
        ids = self._tokenizer.encode(after, add_special_tokens=False)
        stops = {self._tokenizer.eos_token_id}
        path = self._model / "generation_config.json"
        if path.exists():
            named = msgspec.json.decode(path.read_bytes(), type=_Generation).eos_token_id
            stops.update(named if isinstance(named, list) else [named])
        for place, token in enumerate(ids):
            if token in stops:
                return tuple(ids[: place + 1])
        raise BadConfig(
            f"{self._model}: its chat template ends turns with {after!r}, at which no engine stops."
        )

    def _rendered(self, messages: Sequence[Message], **how: bool) -> Any:
        sent = messages if self._system_role else without_system_role(messages)
        chat = msgspec.to_builtins(list(sent))
        return self._tokenizer.apply_chat_template(chat, return_dict=False, **how, **self._switch)


def run(options: Options) -> int:
    """Run the step and return the exit status."""
    need("sft", *NEEDED)
    settings = options.settings("role", "thinking", "system_role")
    inputs = {"filtered": options.filtered, **tokenizer_files(options.model)}
    step = Step.begin(options.out, "dataset", inputs, settings)
    if (manifest := step.finished) is None:
        tokens = ServedTokens(
            options.model,
            thinking=options.thinking,
            system_role=options.system_role,
        )
        kind = Execution if options.role == "execution" else Conversation
        samples = read_samples(options.filtered)
        rows, turns = rows_of(
            (sample for sample in samples if isinstance(sample.work, kind)), tokens
        )
        if not rows:
            raise BadConfig(
                "Nothing to learn: no turn that passed the filter searched or reported "
                f"(turns: {dict(turns)}); look at the tables of `rolegate sft filter`."
            )
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
    """Return the files of a model's folder that determine token ids, by name. Raises `BadConfig`
    without a tokenizer.
    """
    files = {name: model / name for name in TOKENIZER_FILES if (model / name).is_file()}
    if "tokenizer_config.json" not in files:
        raise BadConfig(
            f"{model}: has no tokenizer; name the folder of a model, with its "
            "tokenizer_config.json."
        )
    return files


def read_samples(path: Path) -> Iterator[FilteredSample]:
    """Yield the lines of a `filtered.jsonl`, or of the one in a folder. Raises `BadConfig` for an
    invalid line.
    """
    advice = "name the folder of `rolegate sft filter`"
    return (sample for _, sample in read_jsonl(path, FilteredSample, advice, SAMPLES))


def read_rows(path: Path) -> list[TrainingRow]:
    """Return the rows in order. Raises `BadConfig` for an invalid line, and for an empty file."""
    rows = [row for _, row in read_jsonl(path, TrainingRow, "make the data set again")]
    if not rows:
        raise BadConfig(f"{path}: has no rows; make the data set again.")
    return rows


def rows_of(
    samples: Iterable[FilteredSample],
    tokens: ServedTokens,
) -> tuple[list[TrainingRow], Counter[str]]:
    """Return a row for each turn whose kind is in `LEARNT`, and the number of turns by kind, or by
    the reason why they have no row.
    """
    rows: list[TrainingRow] = []
    turns: Counter[str] = Counter()
    for number, sample in enumerate(samples):
        work = sample.work
        if isinstance(work, Conversation):
            conversation = work
            kind_of = _decision
        else:
            conversation = work.conversation
            kind_of = partial(_kind, parse_table_turn if sample.ask else parse_turn)
        for turn, (messages, output, reply) in enumerate(_turns(conversation)):
            kind = "cut off" if output.finish_reason == "length" else kind_of(output, reply)
            if kind in LEARNT and isinstance(work, Execution) and not _as_served(work, turn):
                kind = "shown passages that the trace lost"
            turns[kind] += 1
            if kind not in LEARNT:
                continue
            ids, returned = tokens.row(messages, output)
            shown = [{**msgspec.structs.asdict(message), "train": False} for message in messages]
            written, _ = end_at_stop(output.text, STOP, "stop", None)
            shown.append({"role": "assistant", "content": written, "train": True})
            origin = turn, number, sample.stratum, sample.question_id, returned
            rows.append(training_row(ids, shown, *origin))
    return rows, turns


def training_row(
    ids: TokenIds,
    messages: Sequence[dict[str, str | bool]],
    *origin: Any,
) -> TrainingRow:
    """Return the row of a prompt and a turn. `origin`: its further fields, from `turn` on."""
    before = len(ids.prompt)
    turn = len(ids.completion)
    return TrainingRow(
        ids.prompt + ids.completion,
        (NO_LOSS,) * before + ids.completion,
        (0,) * before + (1,) * turn,
        (1,) * (before + turn),
        tuple(messages),
        *origin,
    )


def _turns(
    conversation: Conversation,
) -> Iterator[tuple[tuple[Message, ...], Completion, Message | None]]:
    """Yield each turn of the model, with the messages before it and the reply to it."""
    messages = conversation.messages
    places = [place for place, message in enumerate(messages) if message.role == "assistant"]
    for place, output in zip(places, conversation.outputs, strict=True):
        reply = next(iter(messages[place + 1 :]), None)
        yield messages[:place], output, reply


def _kind(parse: Callable[[str], ExecutionTurn], output: Completion, reply: Message | None) -> str:
    """Return `search` or `report`, or the reason why an executor's turn is not learnt."""
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
    """Return `dispatch` or `stop`, or the reason why a delegator's turn is not learnt."""
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
    """Return True if the trace has all that the model saw in a turn; passages that were dropped
    later are missing from it.
    """
    complete = not any(search.dropped_passages for search in execution.searches)
    return complete or turn in (0, len(execution.conversation.outputs) - 1)
