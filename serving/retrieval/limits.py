"""What one search may ask for, by whichever way it comes in."""

from collections.abc import Sequence

from router.errors import BadRequest

MAX_QUERIES = 256
MAX_QUERY_CHARS = 8192
MAX_TOP_K = 100
MAX_PASSAGES = 2560
"""Of all queries of a search together."""


def check_queries(queries: Sequence[str]) -> None:
    """Raises `BadRequest` unless there are 1 to 256 queries, none blank, none above 8192 characters."""
    if not 1 <= len(queries) <= MAX_QUERIES:
        raise BadRequest(f"queries: {len(queries)} were sent; send 1 to {MAX_QUERIES}.")
    for number, query in enumerate(queries):
        if not query.strip():
            raise BadRequest(f"queries[{number}]: empty; write a query or leave it out.")
        if len(query) > MAX_QUERY_CHARS:
            raise BadRequest(f"queries[{number}]: {len(query)} characters; send at most {MAX_QUERY_CHARS}.")


def chosen_top_k(top_k: int, default: int, queries: int) -> int:
    """`top_k`, or `default` where it is 0. Raises `BadRequest` unless it is 0 to 100, and where that is more than
    2560 passages for so many `queries`.
    """
    if not 0 <= top_k <= MAX_TOP_K:
        raise BadRequest(f"top_k: {top_k}; send 1 to {MAX_TOP_K}, or 0 for the default of {default}.")
    top_k = top_k or default
    if queries * top_k > MAX_PASSAGES:
        raise BadRequest(
            f"top_k: {top_k} passages for each of {queries} queries; a search returns at most {MAX_PASSAGES}, so send "
            "fewer queries at a time."
        )
    return top_k
