"""An upper bound of a prompt's tokens."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.calls.limits import prompt_bound
from router.models import Message

EMPTY = prompt_bound([Message("user", "")])


@given(st.text() | st.text("ae각\u0301\u0323\u0344\ufdfa\U0002f922ﬁệ"))
def test_there_is_no_more_than_a_token_for_a_byte(text: str) -> None:
    """Of the text as it is, or as tokenizers normalize it."""
    bound = prompt_bound([Message("user", text)]) - EMPTY
    forms = [text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFKC", text)]
    assert bound >= max(len(form.encode()) for form in forms)
    assert bound <= sum(
        max(
            len(one.encode()),
            *(len(unicodedata.normalize(form, one).encode()) for form in ("NFC", "NFD", "NFKD")),
        )
        for one in text
    )


def test_no_pair_is_longer_once_it_is_composed() -> None:
    """Which the bound rests on."""
    for character in filter(unicodedata.decomposition, map(chr, range(0x110000))):
        decomposed = unicodedata.normalize("NFD", character)
        assert len(unicodedata.normalize("NFC", decomposed).encode()) <= len(decomposed.encode())


@pytest.mark.parametrize(
    ("text", "tokens"), [("abc", 3), ("é", 3), ("각", 3), ("\ufdfa", 33), ("\ud800", 3), ("", 0)]
)
def test_bytes(text: str, tokens: int) -> None:
    """A ligature that stands for a phrase counts as the phrase; half a surrogate pair is no
    error.
    """
    assert prompt_bound([Message("user", text)]) - EMPTY == tokens


def test_messages_add_up() -> None:
    """Each message has its frame, the prompt has its own."""
    one = prompt_bound([Message("system", "ab")])
    assert prompt_bound([Message("system", "ab"), Message("user", "ab")]) == 2 * one - prompt_bound(
        []
    )


MODELS = Path(__file__).parents[3] / "serving" / "models"


@pytest.mark.parametrize("name", ["mini-backbone", "mini-executor"])
def test_a_real_tokenizer_stays_below(name: str) -> None:
    """With its chat template, whatever is said."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS / name)
    for text in ("", "\x00\x01", "𝕳𝖊𝖑𝖑𝖔", "ﷺ" * 9, "Who? " * 50, " \n\t" * 30):
        messages = [
            Message("system", text),
            Message("user", text),
            Message("assistant", text),
            Message("user", text),
        ]
        chat = [{"role": message.role, "content": message.content} for message in messages]
        rendered = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert len(tokenizer.encode(rendered, add_special_tokens=False)) <= prompt_bound(messages)
