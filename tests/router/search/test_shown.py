"""What an executor is shown, and what gives way."""

from router.models import Completion, Message, Usage
from router.protocol import Passage, prompts
from router.search.agent import ContextWindow
from router.search.executor import EXECUTOR
from router.trace.values import SearchRecord

OPENING = (Message("system", "s" * 100), Message("user", "u" * 20))
FIRST, SECOND = ([Passage(f"{name}{rank}", "T", "x" * 100) for rank in range(3)] for name in "ab")


def two_searches() -> ContextWindow:
    """Two searches of three passages each; the second asks for the report."""
    shown = ContextWindow(OPENING, EXECUTOR)
    shown.absorb(Completion("<search>a</search>", "stop"))
    shown.documents(SearchRecord("a", tuple(FIRST)), last=False)
    shown.absorb(Completion("<search>b</search>", "stop"))
    shown.documents(SearchRecord("b", tuple(SECOND)), last=True)
    return shown


def test_the_latest_search_gives_way_first() -> None:
    """Lowest rank first; then the earlier search; and then nothing is left."""
    shown = two_searches()
    dropped = []
    while shown.drop():
        dropped.append([search.dropped_passages for search in shown.searches])
    assert dropped == [[0, 1], [0, 2], [0, 3], [1, 3], [2, 3], [3, 3]]
    assert [search.passages for search in shown.searches] == [tuple(FIRST), tuple(SECOND)]


def test_messages_show_what_is_left() -> None:
    """A shortened message stands where it stood, and still asks for the report if it did."""
    shown = two_searches()
    for _ in range(4):
        shown.drop()
    assert shown.messages[3].content == prompts.documents(FIRST[:2], last=False)
    assert shown.messages[5].content == prompts.documents([], last=True)
    assert len(shown.messages) == 6


def test_fit_by_characters() -> None:
    """Without usage, three characters count as a token; what is to be written has its place too."""
    shown = two_searches()
    characters = sum(len(message.content) for message in shown.messages)
    shown.fit(characters // 3 + 65, 64)
    assert [search.dropped_passages for search in shown.searches] == [0, 0]
    shown.fit(characters // 3 + 60, 64)
    assert [search.dropped_passages for search in shown.searches] == [0, 1]


def test_fit_by_usage() -> None:
    """The engine's own count of the same conversation is believed over the rule of thumb."""
    for tokens_per_character, dropped in ((1 / 3, 0), (2 / 3, 2)):
        shown = ContextWindow(OPENING, EXECUTOR)
        usage = Usage(int(120 * tokens_per_character), 5)
        shown.absorb(Completion("<search>a</search>", "stop", usage=usage))
        shown.documents(SearchRecord("a", tuple(FIRST)), last=False)
        shown.fit(sum(len(message.content) for message in shown.messages) // 3 + 65, 64)
        assert shown.searches[0].dropped_passages == dropped


def test_what_cannot_fit_is_left_to_the_engine() -> None:
    """Once no passage is left the estimate has nothing to say."""
    shown = two_searches()
    shown.fit(1, 64)
    assert [search.dropped_passages for search in shown.searches] == [3, 3]
    assert shown.messages[:2] == OPENING


def test_it_is_closed_in_the_users_last_turn() -> None:
    """Once: after documents as they do it, else with the words given; a turn of the model's has
    one after it.
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
