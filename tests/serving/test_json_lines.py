"""JSON lines longer than the block from which `datasets` infers types."""

from pathlib import Path
from typing import Any

import pytest

from serving.json_lines import write_json_lines

_ROWS = 26
_PADDING = "y" * 500_000
TURN = {"text": "ok", "usage": {"prompt_tokens": 1, "cached": None}}
CASES: dict[str, tuple[Any, Any]] = {
    "null, then integers": (None, 7),
    "null, then fractions": (None, 0.5),
    "null, then texts": (None, "known"),
    "null, then truths": (None, True),
    "integers, then fractions": (1, 0.5),
    "empty lists, then integers": ([], [1, 2]),
    "empty lists, then texts": ([], ["a"]),
    "empty lists, then structs": ([], [TURN]),
    "null, then lists": (None, [1]),
    "null, then empty lists": (None, []),
    "lists of integers, then of fractions": ([1], [0.5]),
    "lists of nothing, then of lists": ([[]], [[1]]),
    "null inside, then a value": ({"a": None}, {"a": 3}),
    "null deep inside, then a value": (
        [TURN],
        [{"text": "ok", "usage": {"prompt_tokens": 1, "cached": 2}}],
    ),
    "null for a struct, then one": (None, {"a": 1}),
    "structs with few fields, then with more": ({"a": 1}, {"a": 1, "b": "x"}),
    "structs with other fields": ({"a": 1}, {"b": 2}),
    "dates, then texts": ("2026-11-21", "so so"),
    "lists of dates, then of texts": (["2026-11-21"], ["so so"]),
}


def loaded(path: Path) -> list[dict[str, Any]]:
    import datasets  # takes a second

    return list(
        datasets.load_dataset(
            "json", data_files=str(path), split="train", cache_dir=str(path.parent / "cache")
        )
    )


def same(read: Any, written: Any) -> bool:
    """Return the row as `datasets` loads it: without absent fields, and with a space after
    dates.
    """
    if isinstance(written, dict):
        return all(same(read[name], written.get(name)) for name in read) and set(read) >= set(
            written
        )
    if isinstance(written, list):
        return len(read) == len(written) and all(map(same, read, written))
    return bool(read == written or (isinstance(written, str) and read == f"{written} "))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_late_type_is_loaded(tmp_path: Path, case: str, reverse: bool) -> None:
    """It comes after more than ten megabytes of the other type."""
    first, second = CASES[case][::-1] if reverse else CASES[case]
    rows = [
        {"number": n, "padding": _PADDING, "value": first if n < _ROWS - 2 else second}
        for n in range(_ROWS)
    ]
    write_json_lines(tmp_path / "rows.jsonl", rows)
    loaded_rows = sorted(loaded(tmp_path / "rows.jsonl"), key=lambda row: row["number"])
    assert [row["number"] for row in loaded_rows] == list(range(_ROWS))
    for row, written in zip(loaded_rows, rows, strict=True):
        assert same(row["value"], written["value"]), case


def test_a_column_that_begins_late_or_ends_early_is_loaded(tmp_path: Path) -> None:
    rows = [
        {
            "number": n,
            "padding": _PADDING,
            **({"early": 1} if n < 3 else {}),
            **({"late": 0.5} if n > 23 else {}),
        }
        for n in range(_ROWS)
    ]
    write_json_lines(tmp_path / "rows.jsonl", rows)
    loaded_rows = sorted(loaded(tmp_path / "rows.jsonl"), key=lambda row: row["number"])
    assert [(row["early"], row["late"]) for row in loaded_rows] == [
        (row.get("early"), row.get("late")) for row in rows
    ]


def test_late_columns_in_large_rows_are_loaded(tmp_path: Path) -> None:
    """The first values of all columns are together at the top."""
    names = [f"c{n}" for n in range(8)]
    rows: list[dict[str, Any]] = [
        {"number": n, "padding": _PADDING, **dict.fromkeys(names)} for n in range(_ROWS)
    ]
    rows += [{**rows[0], "number": _ROWS + n, name: [n]} for n, name in enumerate(names)]
    write_json_lines(tmp_path / "rows.jsonl", rows)
    loaded_rows = sorted(loaded(tmp_path / "rows.jsonl"), key=lambda row: row["number"])
    assert [[row[name] for name in names] for row in loaded_rows] == [
        [row[name] for name in names] for row in rows
    ]


def test_order_is_kept_where_types_are_known(tmp_path: Path) -> None:
    rows = [{"number": n, "padding": _PADDING, "value": n % 2 or None} for n in range(_ROWS)]
    write_json_lines(tmp_path / "rows.jsonl", rows)
    assert [row["number"] for row in loaded(tmp_path / "rows.jsonl")] == list(range(_ROWS))
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["rows.jsonl"]
