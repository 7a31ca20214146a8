"""Errors that one process sends to another."""

import pickle

import pytest

from router.errors import (
    BadConfig,
    NoText,
    Overloaded,
    RolegateError,
    StoreInUse,
    UpstreamRefused,
    UpstreamUnavailable,
)

ERRORS = [
    BadConfig("is missing"),
    StoreInUse("is in use", address="127.0.0.1:1"),
    NoText("has no text", reasons={"a.pdf": "is empty"}),
    Overloaded("is full", retry_after_s=2.0),
    UpstreamRefused("no such model", endpoint="http://a/v1", lasting=True),
    UpstreamUnavailable("is down", endpoint="http://a/v1", retry_after_s=1.5, throttled=True),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_pickled_error_keeps_all_that_it_says(error: RolegateError) -> None:
    """Constructors that take keywords do not matter."""
    if isinstance(error, UpstreamUnavailable):
        error.role = "answer"
    sent = pickle.loads(pickle.dumps(error))
    assert type(sent) is type(error)
    assert (str(sent), sent.args, vars(sent)) == (str(error), error.args, vars(error))
