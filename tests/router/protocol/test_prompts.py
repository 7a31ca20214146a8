"""Texts of prompts."""

import pytest

from router.models import Message
from router.protocol import Report, prompts

SYSTEM = Message("system", "be brief")
ASKED = Message("user", "hi")
SAID = Message("assistant", "hello")


@pytest.mark.parametrize(
    ("messages", "sent"),
    [
        ((SYSTEM, ASKED), (Message("user", "be brief\n\nhi"),)),
        ((SYSTEM, ASKED, SAID, ASKED), (Message("user", "be brief\n\nhi"), SAID, ASKED)),
        ((ASKED, SAID, SYSTEM, ASKED), (ASKED, SAID, Message("user", "be brief\n\nhi"))),
        ((ASKED, SYSTEM), (Message("user", "hi\n\nbe brief"),)),
        ((ASKED, SAID, SYSTEM), (ASKED, SAID, Message("user", "be brief"))),
        ((SYSTEM,), (Message("user", "be brief"),)),
        ((ASKED, SAID, ASKED), (ASKED, SAID, ASKED)),
    ],
)
def test_without_a_system_role_its_text_joins_a_user_turn(
    messages: tuple[Message, ...], sent: tuple[Message, ...]
) -> None:
    """Nothing is lost or moved, and users and assistants alternate."""
    assert prompts.without_system_role(messages) == sent


def test_managers_are_named_only_where_they_exist() -> None:
    pairs = [
        ("Who?", Report("it is blocked", (), escalate_to="pages")),
        ("Which?", Report("42", ("It is 42.",))),
    ]
    assert "pages" not in prompts.search_results(pairs)
    shown = prompts.search_results(pairs, managed=True)
    assert shown.replace("<escalate_to>pages</escalate_to>", "", 1) == prompts.search_results(pairs)


@pytest.mark.parametrize("output", ["", " \n", "<think>hm", "<think>hm</think>\n"])
def test_a_turn_is_never_empty(output: str) -> None:
    """Many endpoints refuse an empty message."""
    assert prompts.shown_turn(output) == "(no output)"
