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
def test_the_bound_is_a_token_per_byte_of_the_longest_form(text: str) -> None:
    """The forms are the text and its normalizations by tokenizers."""
    bound = prompt_bound([Message("user", text)]) - EMPTY
    forms = [text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFKC", text)]
    assert bound >= max(len(form.encode()) for form in forms)
    assert bound <= sum(
        max(
            len(character.encode()),
            *(
                len(unicodedata.normalize(form, character).encode())
                for form in ("NFC", "NFD", "NFKD")
            ),
        )
        for character in text
    )


def test_no_composed_character_is_longer_than_its_parts() -> None:
    """The bound rests on this fact."""
    for character in filter(unicodedata.decomposition, map(chr, range(0x110000))):
        decomposed = unicodedata.normalize("NFD", character)
        assert len(unicodedata.normalize("NFC", decomposed).encode()) <= len(decomposed.encode())


@pytest.mark.parametrize(
    ("text", "tokens"), [("abc", 3), ("é", 3), ("각", 3), ("\ufdfa", 33), ("\ud800", 3), ("", 0)]
)
def test_a_ligature_counts_as_its_expansion(text: str, tokens: int) -> None:
    """A lone surrogate is no error."""
    assert prompt_bound([Message("user", text)]) - EMPTY == tokens


def test_bounds_of_messages_add_up() -> None:
    """Each message has its frame, and so has the prompt."""
    single_message = prompt_bound([Message("system", "ab")])
    assert prompt_bound(
        [Message("system", "ab"), Message("user", "ab")]
    ) == 2 * single_message - prompt_bound([])


MODELS = Path(__file__).parents[3] / "serving" / "models"


@pytest.mark.parametrize("name", ["mini-backbone", "mini-executor"])
def test_a_real_tokenizer_stays_below_the_bound(name: str) -> None:
    """Holds with its chat template, for any text."""
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
