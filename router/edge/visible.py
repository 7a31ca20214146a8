"""Text from outside as terminals and pages show it: with the characters that they would obey."""

_OBEYED = (
    *(code for code in range(0x20) if chr(code) not in "\t\n"),
    *range(0x7F, 0xA0),  # among them U+009B, which begins a sequence as ESC [ does
    *range(0x2028, 0x202F),  # separators of lines, and what turns the direction of writing
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),  # of names that are not UTF-8, and cannot be printed
)
SHOWN = {code: f"\\u{code:04x}" for code in _OBEYED}
"""As JSON writes them, so that JSON stays the same JSON."""


def visible(text: str) -> str:
    r"""The text with `\u001b` for the escape character, and so on for all that is obeyed but tab and newline."""
    return text if text.isprintable() else text.translate(SHOWN)  # of these characters, none is printable
