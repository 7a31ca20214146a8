import random
from collections.abc import Sequence

import pytest

from router.trace.citation import sentences
from serving.documents.cutter import Cutter, Piece
from serving.documents.document import Document, TextBlock
from serving.retrieval.embedder import MiniLM


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


CUTTER = Cutter(24, 100, words)


def sentence(name: str, length: int = 5) -> str:
    return " ".join([name.capitalize(), *["word"] * (length - 2), f"{name}{name}."])


def cut(*blocks: TextBlock, title: str = "Title", cutter: Cutter = CUTTER) -> list[Piece]:
    return list(cutter.cut(Document(title, blocks)))


def test_whole_sentences_are_packed_up_to_the_limit() -> None:
    """The title and its mark take two of the 24 tokens, so four sentences of five tokens fit."""
    names = "abcdefgh"
    pieces = cut(TextBlock(" ".join(map(sentence, names))))
    assert [piece.text for piece in pieces] == [
        " ".join(map(sentence, "abcd")),
        " ".join(map(sentence, "efgh")),
    ]
    assert {piece.title for piece in pieces} == {"Title"}


def test_a_passage_begins_with_the_end_of_the_one_before() -> None:
    """The overlap has at most 15 % of the limit, here three tokens."""
    pieces = cut(TextBlock(" ".join([sentence("a", 18), sentence("b", 3), sentence("c", 15)])))
    assert [piece.text for piece in pieces] == [
        f"{sentence('a', 18)} {sentence('b', 3)}",
        f"{sentence('b', 3)} {sentence('c', 15)}",
    ]


def test_an_overlap_never_pushes_a_sentence_out() -> None:
    """There is no overlap if the next sentence needs the space."""
    pieces = cut(TextBlock(" ".join([sentence("a", 18), sentence("b", 3), sentence("c", 22)])))
    assert [piece.text for piece in pieces][1:] == [sentence("c", 22)]


def test_nothing_goes_across_a_page() -> None:
    """Even short pages have their own passages, and an empty page has none."""
    pieces = cut(
        TextBlock("One. Two.", page=1), TextBlock(" ", page=2), TextBlock("Three.", page=3)
    )
    assert pieces == [Piece("Title", "One. Two.", 1), Piece("Title", "Three.", 3)]


def test_a_heading_begins_a_passage_and_is_in_its_title() -> None:
    """All passages of a section have it in their title, and no overlap with the section before."""
    pieces = cut(
        TextBlock(f"{sentence('a', 9)} {sentence('b', 2)}"),
        TextBlock(" ".join(sentence(name, 8) for name in "cdef"), "Use"),
    )
    assert [(piece.title, len(piece.text.split())) for piece in pieces] == [
        ("Title", 11),
        ("Title › Use", 16),
        ("Title › Use", 16),
    ]


def test_a_short_section_continues_past_the_next_heading() -> None:
    """Below a third of the limit, the passage continues and the heading is in its text."""
    pieces = cut(
        *(
            TextBlock(sentence(name, 4), heading)
            for name, heading in zip("abc", ("One", "Two", "Three"), strict=True)
        )
    )
    assert pieces == [
        Piece("Title › One", f"{sentence('a', 4)}\n\nTwo\n\n{sentence('b', 4)}", None),
        Piece("Title › Three", sentence("c", 4), None),
    ]


def test_no_heading_is_lost() -> None:
    """A heading without text is in a title or in a text; the document's title is not repeated."""
    assert cut(
        TextBlock("", "Title"),
        TextBlock("", "Part"),
        TextBlock("", "Chapter"),
        TextBlock("Text.", "Chapter"),
    ) == [Piece("Title › Part", "Chapter\n\nText.", None)]
    assert cut(TextBlock(sentence("a", 22), "Title")) == [Piece("Title", sentence("a", 22), None)]
    assert cut(TextBlock("Text."), TextBlock("", "End")) == [Piece("Title", "Text.\n\nEnd", None)]
    assert cut(TextBlock("", "Alone")) == [Piece("Title", "Alone", None)]
    assert cut(TextBlock("", sentence("long", 9)), TextBlock("Text.", sentence("long", 9))) == [
        Piece("Title", f"{sentence('long', 9)}\n\nText.", None)
    ]


def test_a_long_sentence_is_cut_at_lines_and_then_at_words() -> None:
    """Lines of a listing stay whole as long as they fit into a passage."""
    pieces = cut(TextBlock("\n".join(["x " * 9 + "end", "y " * 9 + "end", "z " * 30 + "end"])))
    assert [piece.text.split()[0] for piece in pieces] == ["x", "z", "z"]
    assert all(len(piece.text.split()) <= 22 for piece in pieces)
    assert [len(line.split()) for line in pieces[0].text.split("\n")] == [10, 10, 2]


def test_a_long_word_is_cut_at_letters(embedder: MiniLM) -> None:
    """Nothing is lost, even if the tokenizer makes one unknown token of it."""
    word = "".join(random.Random(5).choices("abcdefghij0123456789", k=5000))
    pieces = cut(TextBlock(word), cutter=Cutter(60, 60, embedder.count_tokens))
    assert "".join(piece.text for piece in pieces) == word
    assert max(len(piece.text) for piece in pieces) <= 60 * 16


def test_white_space_between_sentences_is_kept_in_kind() -> None:
    """A blank line, a new line, a space and no space are kept; control characters are removed."""
    text = "One.\r\n\r\n\r\nTwo.   Three.\n  Four.\fFive\x00\x1b.\u3042。\u3044。"
    assert cut(TextBlock(text))[0].text == "One.\n\nTwo. Three.\nFour.\n\nFive.\u3042。\u3044。"


def test_empty_documents_have_no_passages() -> None:
    """Empty documents, and those with white space only, have none."""
    assert (
        cut()
        == cut(TextBlock(""))
        == cut(TextBlock("", "\x13"))
        == cut(TextBlock(" \n\x00\n "))
        == []
    )


def test_a_title_never_takes_the_room_of_the_text() -> None:
    """A title is shortened to a quarter of the limit."""
    (piece,) = cut(TextBlock("Text."), title="word " * 1000)
    assert len(piece.title.split()) <= 6
    assert piece.text == "Text."


@pytest.mark.parametrize("limit", [32, 60, 200])
def test_no_passage_is_longer_than_the_limit(embedder: MiniLM, limit: int) -> None:
    """The tokenizer's count of what is embedded holds for any mixture of words, lines, headings and
    pages.
    """
    chooser = random.Random(limit)
    atoms = [
        "word",
        "Zürich",
        "anti-establishment.",
        "3.14",
        "\n",
        "\n\n",
        ".",
        "?",
        "東京は大きい。",
        "กรุงเทพ" * 30,
        "x" * 300,
    ]
    blocks = [
        TextBlock(
            " ".join(chooser.choices(atoms, k=chooser.randrange(120))),
            chooser.choice(["A b", "C", "long " * 30]),
        )
        for _ in range(40)
    ]
    pieces = list(Cutter(limit, limit, embedder.count_tokens).cut(Document("The title", blocks)))
    assert max(embedder.count_tokens([f"{piece.title}\n{piece.text}" for piece in pieces])) <= limit
    assert all(piece.text.strip() for piece in pieces)


def test_every_sentence_is_in_a_passage_in_order(embedder: MiniLM) -> None:
    """Nothing is lost, and only the overlap is repeated."""
    text = " ".join(
        f"Sentence number {number} is about the year {1000 + number}." for number in range(300)
    )
    pieces = list(Cutter(60, 60, embedder.count_tokens).cut(Document("Numbers", [TextBlock(text)])))
    cut_sentences = [
        passage_sentence for piece in pieces for passage_sentence in sentences(piece.text)
    ]
    assert list(dict.fromkeys(cut_sentences)) == sentences(text)
    assert len(cut_sentences) <= 1.3 * 300


def test_tokens_are_counted_in_batches() -> None:
    """Thousands of sentences take a few dozen calls."""
    calls: list[int] = []

    def count(texts: Sequence[str]) -> list[int]:
        calls.append(len(texts))
        return words(texts)

    cut(*(TextBlock(sentence(name)) for name in "abcdefgh" * 1000), cutter=Cutter(24, 24, count))
    assert sum(calls) < 8100
    assert len(calls) < 50


def test_text_without_tokens_still_fills_passages(embedder: MiniLM) -> None:
    """Zero-width letters, which tokenizers ignore, neither make an endless passage nor take endless
    time.
    """
    cutter = Cutter(24, 254, embedder.count_tokens)
    pieces = cut(TextBlock("\u200b\n\n" * 100), cutter=cutter)
    assert len(pieces) > 3


def test_a_blank_line_ends_a_sentence_that_ends_in_an_abbreviation() -> None:
    """A single new line does not end it."""
    assert sentences("Smith Jr.\n\nHe met Dr. Jones.") == ["Smith Jr.", "He met Dr. Jones."]
