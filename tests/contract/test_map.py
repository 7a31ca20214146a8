"""The map says what it should: names of now for names of the recording, and why something is
gone.
"""

import pytest

from tests.contract.names import data_now, differences, place_now
from tests.contract.renamed import RENAMED, Dropped


def test_it_gives_reasons() -> None:
    """Whatever is gone or new says why."""
    for section, names in RENAMED.items():
        for name, found in names.items():
            reason = found.reason if isinstance(found, Dropped) else found
            if isinstance(found, Dropped) or section == "added":
                assert len(reason.split()) >= 3, f"{section}: {name}: say why in a sentence"


def test_names_and_words_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everywhere, or in one field only; what was dropped is left out."""
    fields = {"fresh": "no_cache", "usage.model": "name", "old": Dropped("Nobody used it.")}
    monkeypatch.setitem(RENAMED, "fields", fields)
    monkeypatch.setitem(RENAMED, "values", {"outcome=discarded": "wasted"})
    monkeypatch.setitem(RENAMED, "reasons", {"UPSTREAM_GARBLED": "PROTOCOL_ERROR"})
    found = data_now(
        {"fresh": 1, "old": 2, "model": 3, "usage": [{"model": "m", "outcome": "discarded"}]}
    )
    assert found == {"no_cache": 1, "model": 3, "usage": [{"name": "m", "outcome": "wasted"}]}
    assert data_now(["UPSTREAM_GARBLED", {"answer": "discarded"}]) == [
        "PROTOCOL_ERROR",
        {"answer": "discarded"},
    ]


def test_places_in_traces_move_with_what_is_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest beginning that was moved counts."""
    moved = {
        "result": "answer",
        "result.executions": "reports",
        "calls": Dropped("They are in the log."),
    }
    monkeypatch.setitem(RENAMED, "trace", moved)
    assert place_now("result.executions.outcome") == ["reports", "outcome"]
    assert place_now("result.outcome") == ["answer", "outcome"]
    assert place_now("calls.number") is None


def test_differences_are_told_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its place; what was added on purpose is none."""
    monkeypatch.setitem(RENAMED, "added", {"fields: new": "came with the tables"})
    told = differences({"a": [1, 2], "b": 1}, {"a": [1, 3], "c": 1, "new": 5})
    assert told == ["/b: is missing, was 1", "/c: is new: 1", "/a[1]: is 3, was 2"]
