"""Secrets are hidden in texts."""

import pytest

from router.models.failures import Secrets, without_userinfo


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pass@host:1/v1", "http://host:1/v1"),
        ("http://token@host/v1?mail=a@b", "http://host/v1?mail=a@b"),
        ("http://me:p@ss#w?rd@host/v1", "http://host/v1"),
        ("https://host/v1", "https://host/v1"),
        ("first https://a:b@c/v1, then https://d:e@f/v1", "first https://c/v1, then https://f/v1"),
        ("mail a@b about http://host/x", "mail a@b about http://host/x"),
    ],
)
def test_addresses_lose_user_and_password(text: str, shown: str) -> None:
    """All addresses in a text do; nothing else changes."""
    assert without_userinfo(text) == shown


def test_api_keys_and_long_settings_are_hidden() -> None:
    """Settings are found at any depth. Short settings stay readable."""
    settings = {
        "user": "open-sesame-and-more",
        "deep": [{"x": ("a-very-long-token-indeed",)}],
        "effort": "low",
        "n": 1,
    }
    hidden = Secrets("sk-1", settings).hidden(
        "sk-1 said open-sesame-and-more and a-very-long-token-indeed, with low, to http://sk-1@host"
    )
    assert hidden == "*** said *** and ***, with low, to http://host"


@pytest.mark.parametrize(
    ("userinfo", "sent"), [("me:p%40ss", "bWU6cEBzcw=="), ("token", "dG9rZW46")]
)
def test_user_and_password_of_an_address_are_hidden(userinfo: str, sent: str) -> None:
    """They are hidden as written, and as sent."""
    hidden = Secrets(None, address=f"http://{userinfo}@host/v1").hidden(
        f"http://{userinfo}@host got Basic {sent} p@ss"
    )
    assert hidden == f"http://host got Basic *** {'***' if 'ss' in userinfo else 'p@ss'}"


def test_a_secret_within_another_is_hidden_with_it() -> None:
    assert (
        Secrets("open-sesame", {"k": "open-sesame-and-more"}).hidden("open-sesame-and-more!")
        == "***!"
    )
