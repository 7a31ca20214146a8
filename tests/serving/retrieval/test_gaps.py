"""Lines about what an index does not contain."""

import pytest

from serving.retrieval.gaps import Gaps


@pytest.mark.parametrize(
    ("name", "error", "line"),
    [
        ("a", "/data/a: damaged", "skipped: a: damaged"),
        ("data", "/data/data: damaged: why", "skipped: data: damaged: why"),
        ("docs/a.pdf", "/home/docs/a.pdf: damaged", "skipped: docs/a.pdf: damaged"),
        ("a.pdf", "the disk is full", "skipped: a.pdf: the disk is full"),
    ],
)
def test_a_skipped_file_is_named_as_in_the_index(name: str, error: str, line: str) -> None:
    assert Gaps({}, [{"name": name, "error": error}], []).lines() == [line]
