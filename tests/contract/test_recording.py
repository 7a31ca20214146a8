"""The comparison with the recording sees each difference."""

from tests.contract.recording import differences


def test_differences_are_told_line_by_line() -> None:
    """Each line names the place of a difference."""
    lines = differences({"a": [1, 2], "b": 1}, {"a": [1, 3], "c": 1})
    assert lines == ["/b: is missing, was 1", "/c: is new: 1", "/a[1]: is 3, was 2"]
    assert differences([1], [1, 2]) == [": 2 entries, were 1", "[1]: is new: 2"]
    assert differences({"a": {"b": [1]}}, {"a": {"b": [1]}}) == []
