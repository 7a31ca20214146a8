"""What models are shown."""

import pytest

from router.models import Message
from router.protocol import prompts

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
def test_without_system_role(messages: tuple[Message, ...], sent: tuple[Message, ...]) -> None:
    """Nothing is lost, nothing is moved, and users and assistants take turns."""
    assert prompts.without_system_role(messages) == sent


@pytest.mark.parametrize("output", ["", " \n", "<think>hm", "<think>hm</think>\n"])
def test_a_turn_is_never_empty(output: str) -> None:
    """Many endpoints refuse an empty message."""
    assert prompts.shown_turn(output) == "(no output)"
