"""The context window of an executor: its messages, and the passages that are dropped."""

from router.models import Completion, Message, Usage
from router.protocol import Passage, prompts
from router.search.agent import ContextWindow
from router.search.executor import EXECUTOR
from router.trace.values import SearchRecord

OPENING = (Message("system", "s" * 100), Message("user", "u" * 20))
FIRST, SECOND = ([Passage(f"{name}{rank}", "T", "x" * 100) for rank in range(3)] for name in "ab")


def two_searches() -> ContextWindow:
    """Return a window of two searches of three passages each. The second asks for the report."""
    shown = ContextWindow(OPENING, EXECUTOR)
    shown.absorb(Completion("<search>a</search>", "stop"))
    shown.documents(SearchRecord("a", tuple(FIRST)), last=False)
    shown.absorb(Completion("<search>b</search>", "stop"))
    shown.documents(SearchRecord("b", tuple(SECOND)), last=True)
    return shown


def test_passages_of_the_latest_search_are_dropped_first() -> None:
    """The lowest rank goes first, then the earlier search, until no passage is left."""
    shown = two_searches()
    dropped = []
    while shown.drop():
        dropped.append([search.dropped_passages for search in shown.searches])
    assert dropped == [[0, 1], [0, 2], [0, 3], [1, 3], [2, 3], [3, 3]]
    assert [search.passages for search in shown.searches] == [tuple(FIRST), tuple(SECOND)]


def test_messages_show_the_passages_that_are_left() -> None:
    """A shortened message keeps its place, and its request for the report."""
    shown = two_searches()
    for _ in range(4):
        shown.drop()
    assert shown.messages[3].content == prompts.documents(FIRST[:2], last=False)
    assert shown.messages[5].content == prompts.documents([], last=True)
    assert len(shown.messages) == 6


def test_without_usage_three_characters_count_as_a_token() -> None:
    """The output has its place too."""
    shown = two_searches()
    characters = sum(len(message.content) for message in shown.messages)
    shown.fit(characters // 3 + 65, 64)
    assert [search.dropped_passages for search in shown.searches] == [0, 0]
    shown.fit(characters // 3 + 60, 64)
    assert [search.dropped_passages for search in shown.searches] == [0, 1]


def test_the_engine_count_replaces_the_estimate() -> None:
    """It is the usage of the same conversation."""
    for tokens_per_character, dropped in ((1 / 3, 0), (2 / 3, 2)):
        shown = ContextWindow(OPENING, EXECUTOR)
        usage = Usage(int(120 * tokens_per_character), 5)
        shown.absorb(Completion("<search>a</search>", "stop", usage=usage))
        shown.documents(SearchRecord("a", tuple(FIRST)), last=False)
        shown.fit(sum(len(message.content) for message in shown.messages) // 3 + 65, 64)
        assert shown.searches[0].dropped_passages == dropped


def test_a_window_that_cannot_fit_is_left_to_the_engine() -> None:
    """No passage is left to drop."""
    shown = two_searches()
    shown.fit(1, 64)
    assert [search.dropped_passages for search in shown.searches] == [3, 3]
    assert shown.messages[:2] == OPENING


def test_it_is_closed_once_in_the_last_turn_of_the_user() -> None:
    """After documents the closing is theirs, otherwise the given words.

    After a turn of the model a new one follows.
    """
    searched = two_searches()
    searched.close("Now.")
    assert searched.messages == two_searches().messages
    begun = ContextWindow(OPENING, EXECUTOR)
    for _ in range(2):
        begun.close("Now.")
    assert begun.messages == (OPENING[0], Message("user", "u" * 20 + "\nNow."))
    begun.absorb(Completion("I see.", "stop"))
    begun.close("Now.")
    assert begun.messages[-1] == Message("user", "Now.")
    first = ContextWindow(OPENING, EXECUTOR)
    first.documents(SearchRecord("a", tuple(FIRST)), last=False)
    first.close("Now.")
    first.drop()
    assert first.messages[-1].content == prompts.documents(FIRST[:2], last=True)
