"""Faults of JSON and TOML in plain words."""

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from router.errors import JSON_ERRORS, explained


class _Row(Struct, forbid_unknown_fields=True):
    number: Annotated[int, Meta(ge=1)]
    name: Annotated[str, Meta(min_length=1, pattern="^a")] = "a"
    kind: Literal["x", "y"] = "x"
    parts: Annotated[list[int], Meta(max_length=2)] = []
    by_name: dict[Annotated[str, Meta(max_length=3)], float | None] = {}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("[]", "must be an object, got a list"),
        ("{}", "lacks the required field `number`"),
        ('{"number": 1, "size": 2}', "has the unknown field `size`"),
        ('{"number": "1"}', "number: must be a whole number, got text"),
        ('{"number": null}', "number: must be a whole number, got null"),
        ('{"number": 0}', "number: must be at least 1"),
        ('{"number": 1, "name": ""}', "name: must have a length of at least 1"),
        ('{"number": 1, "name": "b"}', "name: must match the regular expression '^a'"),
        ('{"number": 1, "kind": "z"}', "kind: cannot be 'z'"),
        ('{"number": 1, "parts": [1, "2"]}', "parts[1]: must be a whole number, got text"),
        ('{"number": 1, "parts": [1, 2, 3]}', "parts: must have a length of at most 2"),
        ('{"number": 1, "by_name": {"ab": "c"}}', "by_name[...]: must be a number, got text"),
        (
            '{"number": 1, "by_name": {"abcd": 1}}',
            "key of by_name: must have a length of at most 3",
        ),
        ('{"number": 1', "ends too early, or contains half of a surrogate pair"),
        (
            '{"number": 1, "name": "a\\ud800"}',
            "ends too early, or contains half of a surrogate pair",
        ),
        ("{number: 1}", "JSON is malformed: object keys must be strings (byte 1)"),
    ],
)
def test_a_fault_is_explained_with_its_place(row: str, why: str) -> None:
    with pytest.raises(JSON_ERRORS) as error:
        msgspec.json.decode(row, type=_Row)
    assert explained(error.value) == why


def test_another_encoding_is_explained() -> None:
    with pytest.raises(JSON_ERRORS) as error:
        msgspec.toml.decode("a = 'caf\xe9'".encode("latin-1"))
    assert explained(error.value) == "is not UTF-8 at byte offset 8 (save it as UTF-8)"


def test_deep_nesting_is_explained() -> None:
    with pytest.raises(RecursionError) as error:
        msgspec.json.decode("[" * 100_000)
    assert explained(error.value) == "is nested too deeply"
