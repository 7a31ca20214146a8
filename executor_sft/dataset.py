"""`rolegate sft dataset`: turn filtered trajectories into tokenized training rows.

A row trains one turn (one message of the model). It has the tokens of the prompt, as the serving
engine reads them, and then the tokens of the turn; only the turn's tokens count in the loss. The
turn's tokens are the ones that the engine returned. If the engine returned none, or if another
model wrote the turn, the turn's text is tokenized instead. TRL can train on rows.jsonl without any
conversion, from `input_ids` with `labels` or with `assistant_masks`. The column `messages` has
prompt and turn as text.

Each turn has its own row, because chat templates remove the thinking from earlier turns. Only the
last turn of a conversation therefore has the same tokens in training and in serving (TBSS, appendix
D). There is no row for a malformed turn, which the model had to correct.
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
from router.frozen import Frozen
from router.models import Completion, Message
from router.models.model import TokenIds, end_at_stop
from router.protocol import parse_decision, parse_turn
from router.protocol.decision import Dispatch, Stop
from router.protocol.prompts import without_system_role
from router.protocol.turns import ReportTurn, SearchTurn
from router.search.executor import STOP
from router.table.table_text import parse_table_turn
from router.trace import Conversation, Execution
from serving.cli.command import POSITIONAL
from serving.dependencies import need
from serving.json_lines import write_json_lines

RESULT = "rows.jsonl"
NEEDED = ("transformers",)
"""Optional packages that the step needs. They are imported late, so that `--help` works without
them.
"""
NO_LOSS = -100
"""Label of a token that the loss ignores."""
LEARNT = ("search", "report", "dispatch", "stop")
"""Kinds of turns that are trained; every turn of these kinds becomes a row."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)
"""Files of a model's folder that determine token ids; a model need not have all of them."""
_THOUGHT = "</think>"
_TURN = "what was said"
"""Sample text of a turn. It is rendered to find out what the chat template puts around turns."""


class Options(StepOptions):
    """Options of the step."""

    filtered: Annotated[Path, POSITIONAL]
    """result folder of `rolegate sft filter`"""
    model: Path
    """folder of the model to train, with its tokenizer"""
    role: Literal["execution", "delegation"] = "execution"
    """role whose turns become rows"""
    thinking: bool | None = None
    """true or false: value of the key `thinking` of this role in the config. Training and serving
    must agree (default: for a config without this key)
    """
    system_role: bool = True
    """true or false: value of the key `system_role` of this role in the config. With false, prompts
    have no system message (default: true)
    """


class TrainingRow(Frozen):
    """One line of `rows.jsonl`: a prompt, and the turn that the model learns to write after it."""

    input_ids: tuple[int, ...]
    """Token ids of the prompt, exactly as the serving engine gets them, then token ids of the turn,
    including the end-of-turn token.
    """
    labels: tuple[int, ...]
    """-100 (no loss) for each token of the prompt, then the token ids of the turn."""
    assistant_masks: tuple[int, ...]
    """0 for each token of the prompt, then 1 for each token of the turn."""
    attention_mask: tuple[int, ...]
    """1 for each token, because rows have no padding."""
    messages: tuple[dict[str, str | bool], ...]
    """The prompt's messages and the turn as text. A message has `role`, `content` and `train`;
    `train` is true only for the turn.
    """
    turn: int
    """Number of the turn among the model's turns in its trajectory, from 0."""
    trajectory: int
    """Number of the trajectory in `filtered.jsonl`, from 0. Trajectories of other roles are not
    counted.
    """
    stratum: Stratum
    question_id: str
    as_returned: bool = False
    """True if the engine returned these token ids; False if they come from tokenizing the text."""

    def __post_init__(self) -> None:
        if not self.completion_ids or len(self.input_ids) != len(self.labels):
            raise ValueError(
                "a training row must have a turn to learn, and as many labels as input_ids"
            )

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """Token ids of the turn."""
        return tuple(label for label in self.labels if label != NO_LOSS)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt."""
        return self.input_ids[: -len(self.completion_ids)]


class _Generation(msgspec.Struct):
    """The only key of `generation_config.json` that is read: the ids of the tokens that end
    generation.
    """

    eos_token_id: int | list[int] | None = None


class ServedTokens:
    """A model's tokenizer. It turns a conversation into the same token ids as vLLM's
    `/v1/chat/completions`.
    """

    def __init__(
        self,
        model: Path,
        *,
        thinking: bool | None = None,
        system_role: bool = True,
    ) -> None:
        """Load the tokenizer from the folder `model`.

        `thinking`, `system_role`: values of these keys in the config of the model's role. Raises
        `BadConfig` if the tokenizer cannot be loaded or has no chat template.
        """
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
        except (OSError, ValueError) as error:
            raise BadConfig(
                f"{model}: its tokenizer cannot be loaded ({error}); copy the model again."
            ) from None
        if self._tokenizer.chat_template is None:
            raise BadConfig(
                f"{model}: has no chat template; add the model's chat_template.jinja to the folder."
            )
        self._model = model
        self._system_role = system_role
        self._switch = {} if thinking is None else {"enable_thinking": thinking}
        self._thinks = "<think>" in self._tokenizer.chat_template if thinking is None else thinking

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the token ids of the prompt that the engine makes from `messages`."""
        return tuple(self._rendered(messages, tokenize=True, add_generation_prompt=True))

    def completion(self, output: Completion) -> tuple[int, ...]:
        """Return the token ids of a turn: the text up to the first stop string (such as
        `</search>`), then the tokens with which the chat template ends a turn.

        The turn's reasoning becomes a thinking block if the role thinks; else it is left out.
        """
        written = self._tokenizer.encode(self._written(output), add_special_tokens=False)
        return tuple(written) + self._end

    def row(self, messages: Sequence[Message], output: Completion) -> tuple[TokenIds, bool]:
        """Return the token ids of prompt and turn, and True if the engine returned these ids.

        The engine's token ids are used if this tokenizer decodes them to the expected text.
        Otherwise the text is tokenized: the engine returned no ids, or they belong to another
        model's tokenizer, such as the teacher's.
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
        """True if the chat template's prompt ends with the opening tag of a thinking block, so
        that the model does not write that tag itself.
        """
        prompt: str = self._rendered(
            [Message("user", _TURN)],
            tokenize=False,
            add_generation_prompt=True,
        )
        return prompt.rstrip().endswith("<think>")

    @cached_property
    def _end(self) -> tuple[int, ...]:
        """Token ids that the chat template puts after a turn. They end with the first token that
        makes the engine stop. Raises `BadConfig` if the engine stops at none of these tokens.
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
            f"{self._model}: its chat template ends turns with {after!r}, and none of these tokens "
            "stops the engine; correct eos_token_id in generation_config.json."
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
                f"Nothing to learn: {options.filtered} has no turn of the role {options.role} to "
                f"train on (turns: {', '.join(f'{turns[kind]} {kind}' for kind in turns)}); check "
                "--role, and the figures of `rolegate sft filter`."
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
    """Return the files of a model's folder that determine token ids. Keys are file names, values
    are paths. Raises `BadConfig` if the folder has no tokenizer.
    """
    files = {name: model / name for name in TOKENIZER_FILES if (model / name).is_file()}
    if "tokenizer_config.json" not in files:
        raise BadConfig(
            f"{model}: has no tokenizer_config.json; name the folder of a downloaded model, not "
            "its name on Hugging Face."
        )
    return files


def read_samples(path: Path) -> Iterator[FilteredSample]:
    """Yield the samples of a `filtered.jsonl`. `path`: path of this file, or of its folder. Raises
    `BadConfig` for an invalid line.
    """
    advice = "name the folder of `rolegate sft filter`"
    return read_jsonl(path, FilteredSample, advice, SAMPLES)


def read_rows(path: Path) -> list[TrainingRow]:
    """Return the rows of the data set in the file `path`, in order. Raises `BadConfig` for an
    invalid line, and for an empty file.
    """
    rows = list(read_jsonl(path, TrainingRow, "make the data set again"))
    if not rows:
        raise BadConfig(f"{path}: has no rows; run `rolegate sft dataset` again.")
    return rows


def rows_of(
    samples: Iterable[FilteredSample],
    tokens: ServedTokens,
) -> tuple[list[TrainingRow], Counter[str]]:
    """Return the training rows, and counts of turns. A turn whose kind is in `LEARNT` gets a row
    and is counted under its kind. Any other turn is counted under the reason why it gets no row.
    """
    rows = list[TrainingRow]()
    turns: Counter[str] = Counter()
    for number, sample in enumerate(samples):
        work = sample.work
        parse: Callable[[str], object] = partial(parse_decision, limit=1)
        if isinstance(work, Execution):
            parse = parse_table_turn if sample.ask else parse_turn
        conversation = work if isinstance(work, Conversation) else work.conversation
        for turn, (messages, output, reply) in enumerate(_turns(conversation)):
            kind = _kind(parse(output.text), reply)
            if output.finish_reason == "length":
                kind = "cut off"
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
    """Return the row of a prompt and a turn.

    `ids`: token ids of prompt and turn. `messages`: prompt and turn as text. `origin`: values of
    the fields of `TrainingRow` from `turn` on, in order.
    """
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
    """Yield (messages before the turn, the model's output, message after the turn) for each turn of
    the model. The message after the last turn may be None.
    """
    messages = conversation.messages
    places = [place for place, message in enumerate(messages) if message.role == "assistant"]
    for place, output in zip(places, conversation.outputs, strict=True):
        reply = next(iter(messages[place + 1 :]), None)
        yield messages[:place], output, reply


def _kind(turn: object, reply: Message | None) -> str:
    """Return the kind of a parsed turn if it is in `LEARNT`, else the reason why the turn is not
    trained. `reply`: the message after the turn.
    """
    text = reply.content if reply else ""
    match turn:
        case SearchTurn() if text.startswith("<documents>"):
            return "search"
        case Dispatch() if text.startswith("<search_results>"):
            return "dispatch"
        case ReportTurn() if reply is None:
            return "report"
        case Stop() if reply is None:
            return "stop"
        case SearchTurn() | Dispatch() | ReportTurn() | Stop():
            return "out of turn"
        case _:
            return "malformed"


def _as_served(execution: Execution, turn: int) -> bool:
    """Return True if the trace contains everything that the model saw before the given turn.

    When a conversation becomes longer than the model's context, the executor drops passages, and
    the trace has only the shortened conversation. Then only the prompts of the first and of the
    last turn are certain to be complete.
    """
    complete = not any(search.dropped_passages for search in execution.searches)
    return complete or turn in (0, len(execution.conversation.outputs) - 1)
