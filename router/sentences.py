"""Sentences: where a text may be cut, and what is quoted from it."""

import re

_END = re.compile(
    r"[.!?…][\"'”’)\]]*(?=\s+[\"'“‘(\[]*(?:[^\W_a-z]|$))"  # a full stop, and then no small letter
    r"|[。！？]+[」』”’）]*"
    r"|(?<=\S)(?=\s*\n\s*\n)"
)
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[^\W\d_]|Mrs?|Ms|Dr|St|Prof|Jr|vs|e\.g|i\.e|cf|Fig|No|approx)\.\Z")


def sentences(text: str) -> list[str]:
    """The sentences of a text, in order, without the white space between them; blank lines end one too."""
    found: list[str] = []
    start = 0
    for end in _END.finditer(text):
        if not _ABBREVIATION.search(text, max(start, end.start() - 8), end.start() + 1):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [sentence for sentence in (*found, text[start:].strip()) if sentence]
