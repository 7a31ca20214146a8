import pytest

from router.errors import BadRequest
from serving.retrieval.services import check_queries, chosen_top_k


def test_the_largest_search_is_allowed() -> None:
    """256 queries of 8192 characters, 100 passages each; 0 takes the default."""
    check_queries(["x" * 8192] * 256)

    assert chosen_top_k(100, 3, 25) == 100
    assert chosen_top_k(0, 3, 1) == 3


@pytest.mark.parametrize(
    ("queries", "said"),
    [
        ([], "0 were sent; send 1 to 256"),
        (["x"] * 257, "257 were sent"),
        (["x", " \n"], r"queries\[1\]: empty"),
        (["x" * 8193], r"queries\[0\]: 8193 characters"),
    ],
)
def test_queries_beyond_the_limits_are_refused(queries: list[str], said: str) -> None:
    """The message says which query, and how much is allowed."""
    with pytest.raises(BadRequest, match=said):
        check_queries(queries)


@pytest.mark.parametrize("top_k", [-1, 101])
def test_top_k_beyond_the_limits_is_refused(top_k: int) -> None:
    """From 0 to 100."""
    with pytest.raises(BadRequest, match=f"top_k: {top_k}; send 1 to 100, or 0 for the default of 3"):
        chosen_top_k(top_k, 3, 1)
