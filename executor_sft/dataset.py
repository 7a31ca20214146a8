"""`rolegate sft dataset`: what was kept, as the very tokens that the serving engine will see.

A row is one turn of the executor: the prompt as the engine reads it there, without loss, and the turn itself, with
loss. Chat templates show earlier turns in other words than these were written in (thinking is dropped), so only a row
for each turn trains on what serving sees (TBSS appendix D). Passages, prompts and corrections carry no loss, and turns
that were corrected have no row.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from executor_sft.composition_table import counts_table
from executor_sft.filter import RESULT as KEPT
from executor_sft.json_lines import decoded_lines
from executor_sft.kept import Kept
from executor_sft.row import Row
from executor_sft.row_file import write_rows
from executor_sft.served_tokens import TOKENIZER_FILES, ServedTokens
from executor_sft.step import MANIFEST, Step, read_manifest
from router.errors import BadConfig
from router.models.model import Completion, Message
from router.protocol.turns import ReportTurn, Search, parse_turn
from router.trace.values import Execution
from serving.dependencies import need

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
