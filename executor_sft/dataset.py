"""`rolegate sft dataset`: what was kept, as the very tokens that the serving engine will see.

A row is one turn of the executor: the prompt as the engine reads it there, without loss, and the turn itself, with
loss. Chat templates show earlier turns in other words than these were written in (thinking is dropped), so only a row
for each turn trains on what serving sees (TBSS appendix D). Passages, prompts and corrections carry no loss, and turns
that were corrected have no row.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from executor_sft.filter import RESULT as KEPT
from executor_sft.filter import Kept, counts_table
from executor_sft.lines import decoded_lines
from executor_sft.step import MANIFEST, Step, read_manifest
from router.errors import BadConfig
from router.models.model import Completion, Message, end_at_stop
from router.protocol.prompts import without_system_role
from router.protocol.turns import ReportTurn, Search, parse_turn
from router.search.executor import STOP
from router.trace.values import Execution
from serving.dependencies import need
from serving.files import replacing

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


class _Generation(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


class ServedTokens:
    """The tokens of a conversation as vLLM makes them for `/v1/chat/completions`."""

    def __init__(self, model: Path, *, thinking: bool | None = None, system_role: bool = True) -> None:
        """`model`: its folder. The others: as of the role that serves. Raises `BadConfig`."""
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
        except (OSError, ValueError) as error:
            raise BadConfig(f"{model}: holds no tokenizer that can be loaded ({error}).") from None
        if self._tokenizer.chat_template is None:
            raise BadConfig(f"{model}: its tokenizer has no chat template; add chat_template.jinja.")
        self._model, self._system_role = model, system_role
        self._switch = {} if thinking is None else {"enable_thinking": thinking}
        self._thinks = "<think>" in self._tokenizer.chat_template if thinking is None else thinking

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """What the engine reads before it writes the next turn."""
        return tuple(self._rendered(messages, tokenize=True, add_generation_prompt=True))

    def completion(self, output: Completion) -> tuple[int, ...]:
        """What the engine is to write: the turn up to its last tag, and the template's end of turn. Reasoning stands in
        a thinking block where the role thinks, and is left out where it does not.
        """
        return tuple(self._tokenizer.encode(self._written(output), add_special_tokens=False)) + self._end

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
        """Whether the template itself begins the thinking block."""
        prompt: str = self._rendered([Message("user", _TURN)], tokenize=False, add_generation_prompt=True)
        return prompt.rstrip().endswith("<think>")

    @cached_property
    def _end(self) -> tuple[int, ...]:
        """What the template puts after a turn, up to the token at which the engine stops."""
        said = [Message("user", "?"), Message("assistant", _TURN)]
        after = self._rendered(said, tokenize=False).rpartition(_TURN)[2]
        ids = self._tokenizer.encode(after, add_special_tokens=False)
        ends = self._ends
        for place, token in enumerate(ids):
            if token in ends:
                return tuple(ids[: place + 1])
        raise BadConfig(f"{self._model}: its chat template ends turns with {after!r}, at which no engine stops.")

    @property
    def _ends(self) -> set[int]:
        """The tokens at which the engine stops."""
        path = self._model / "generation_config.json"
        told = msgspec.json.decode(path.read_bytes(), type=_Generation).eos_token_id if path.exists() else None
        return {self._tokenizer.eos_token_id, *(told if isinstance(told, list) else [told])} - {None}

    def _rendered(self, messages: Sequence[Message], **how: bool) -> Any:
        sent = messages if self._system_role else without_system_role(messages)
        chat = msgspec.to_builtins(list(sent))
        return self._tokenizer.apply_chat_template(chat, return_dict=False, **how, **self._switch)


class Row(msgspec.Struct, frozen=True):
    """What the engine shows the model, and what the model is to write."""

    prompt_ids: tuple[int, ...]
    """Token ids of the conversation before the turn, exactly as the serving engine sees it, without loss."""
    completion_ids: tuple[int, ...]
    """Token ids of the turn, its end included; never empty."""
    turn: int
    """The number of the turn in its trajectory, from 0."""
    trajectory: int
    """The number of its trajectory among those that were kept, from 0."""


_COLUMNS = ("prompt_ids", "completion_ids", "turn", "trajectory")


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the file whole, or leave it as it was and raise `OSError`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: [getattr(row, name) for row in rows] for name in _COLUMNS}
    with replacing(path) as unfinished:
        pq.write_table(pa.table(columns, schema=_schema()), unfinished)


def read_rows(path: Path) -> list[Row]:
    """The rows in order. Raises `BadConfig` where it is no such file, or a row has nothing to learn."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, schema=_schema())
    except (OSError, pa.ArrowException) as error:
        raise BadConfig(f"{path}: {error}; make the data set again.") from None
    columns = (table[name].to_pylist() for name in _COLUMNS)
    rows = [Row(tuple(prompt), tuple(turn), *numbers) for prompt, turn, *numbers in zip(*columns, strict=True)]
    if empty := sum(not row.completion_ids for row in rows):
        raise BadConfig(f"{path}: {empty} of {len(rows)} rows have no token to learn; make the data set again.")
    if not rows:
        raise BadConfig(f"{path}: has no rows; make the data set again.")
    return rows


def _schema() -> Any:
    import pyarrow as pa

    ids, number = pa.list_(pa.int32()), pa.int32()
    return pa.schema(list(zip(_COLUMNS, (ids, ids, number, number), strict=True)))


RESULT = "rows.parquet"
NEEDED = ("pyarrow", "transformers")
"""Modules that are loaded late, so that `--help` can do without."""
LEARNT = ("search", "report")
"""The turns that have a row."""
_BOOLEANS = {"true": True, "false": False}


def main(arguments: Sequence[str]) -> int:
    """Run the step; the exit status."""
    parser = argparse.ArgumentParser(
        prog="rolegate sft dataset", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kept", type=Path, metavar="KEPT", help="the folder of `rolegate sft filter`")
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER", help="the student's, with its tokenizer")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the result goes")
    parser.add_argument(
        "--max-length", type=int, default=4096, metavar="N", help="tokens of a row; one that is longer is an error"
    )
    for option, default, key in (("--thinking", None, "thinking"), ("--system-role", "true", "system_role")):
        parser.add_argument(option, choices=_BOOLEANS, default=default, help=f"as roles.execution.{key} of the config")
    given = parser.parse_args(arguments)
    need("sft", *NEEDED)
    thinking, system_role = _BOOLEANS.get(given.thinking), _BOOLEANS[given.system_role]
    settings = {"max_length": given.max_length, "thinking": thinking, "system_role": system_role}
    step = Step.begin(given.out, "dataset", {"kept": given.kept, **tokenizer_files(given.model)}, settings)
    if (manifest := step.finished) is None:
        tokens = ServedTokens(given.model, thinking=thinking, system_role=system_role)
        rows, turns = rows_of(read_kept(given.kept), tokens)
        _check(rows, turns, given.max_length)
        write_rows(given.out / RESULT, rows)
        manifest = step.finish(_figures(rows, turns, given.kept), [RESULT])
    print(f"{given.out}: {manifest.figures['rows']:,} rows, {manifest.figures['completion_tokens']:,} tokens with loss")
    Console().print(counts_table("turns", manifest.figures["turns"]))
    return 0


def tokenizer_files(model: Path) -> dict[str, Path]:
    """The files in a model's folder that decide about token ids, by name. Raises `BadConfig` where there is none."""
    files = {name: model / name for name in TOKENIZER_FILES if (model / name).is_file()}
    if "tokenizer_config.json" not in files:
        raise BadConfig(f"{model}: holds no tokenizer; name the folder of a model, with its tokenizer_config.json.")
    return files


def read_kept(path: Path) -> Iterator[Kept]:
    """The lines of a `kept.jsonl`, or of the one in a folder. Raises `BadConfig` naming a line that is not one."""
    return decoded_lines(path, KEPT, Kept, "rolegate sft filter")


def rows_of(kept: Iterable[Kept], tokens: ServedTokens) -> tuple[list[Row], Counter[str]]:
    """A row for each turn that searched or reported; and what all turns were, those without a row by the reason."""
    rows: list[Row] = []
    turns: Counter[str] = Counter()
    for number, trajectory in enumerate(kept):
        for turn, (messages, output, reply) in enumerate(_turns(trajectory.execution)):
            kind = _kind(output, reply)
            if kind in LEARNT and not _as_served(trajectory.execution, turn):
                kind = "shown passages that the trace lost"
            if kind in LEARNT:
                rows.append(Row(tokens.prompt(messages), tokens.completion(output), turn, number))
            turns[kind] += 1
    return rows, turns


def _turns(execution: Execution) -> Iterator[tuple[tuple[Message, ...], Completion, Message | None]]:
    """What stands before each of the executor's turns, the turn, and what it was told then."""
    messages = execution.conversation.messages
    places = [place for place, message in enumerate(messages) if message.role == "assistant"]
    for place, output in zip(places, execution.conversation.outputs, strict=True):
        yield messages[:place], output, messages[place + 1] if place + 1 < len(messages) else None


def _kind(output: Completion, reply: Message | None) -> str:
    """`search` or `report`, or why a turn is not to be learnt."""
    if output.finish_reason == "length":
        return "cut off"
    match parse_turn(output.text):
        case Search() if reply is not None and reply.content.startswith("<documents>"):
            return "search"
        case ReportTurn() if reply is None:
            return "report"
        case Search() | ReportTurn():
            return "out of turn"
        case _:
            return "malformed"


def _as_served(execution: Execution, turn: int) -> bool:
    """Whether the trace shows what the model saw in a turn: passages that gave way later are missing from it."""
    whole = not any(search.dropped_passages for search in execution.searches)
    return whole or turn in (0, len(execution.conversation.outputs) - 1)


def _check(rows: Sequence[Row], turns: Counter[str], max_length: int) -> None:
    if not rows:
        raise BadConfig(
            f"Nothing to learn: no turn that was kept searched or reported (turns: {dict(turns)}); look at the "
            "tables of `rolegate sft filter`."
        )
    if long := [length for row in rows if (length := _length(row)) > max_length]:
        raise BadConfig(
            f"{len(long)} of {len(rows)} rows are longer than {max_length} tokens, the longest has {max(long)}; raise "
            "--max-length, or show fewer or shorter passages. Nothing is cut: that would lose the report."
        )


def _length(row: Row) -> int:
    return len(row.prompt_ids) + len(row.completion_ids)


def _figures(rows: Sequence[Row], turns: Counter[str], kept: Path) -> dict[str, object]:
    made_of = read_manifest(kept) if (kept / MANIFEST).exists() else None
    return {
        "rows": len(rows),
        "trajectories": len({row.trajectory for row in rows}),
        "turns": dict(turns),
        "prompt_tokens": sum(len(row.prompt_ids) for row in rows),
        "completion_tokens": sum(len(row.completion_ids) for row in rows),
        "longest": max(map(_length, rows)),
        "kept": msgspec.to_builtins(made_of),
    }
