"""The operator's held-out questions, in files as `rolegate sft` reads them."""

from pathlib import Path

import msgspec

from router.errors import BadConfig
from router.versions import HeldOutQuestion


class _Line(msgspec.Struct, frozen=True):
    """A line of a file; other keys are ignored."""

    text: str = ""
    question: str = ""
    answers: list[str] | str = ""
    golden_answers: list[str] = []
    golds: list[str] = []
    answer: list[str] | str = ""


def read_held_out(path: Path) -> list[HeldOutQuestion]:
    """The questions of a file, each once, with their right answers. Raises `BadConfig`, naming file and line."""
    found: dict[str, HeldOutQuestion] = {}
    try:
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if not line.strip():
                continue
            one = msgspec.json.decode(line, type=_Line)
            text = (one.text or one.question).strip()
            given = one.answers or one.golden_answers or one.golds or one.answer
            golds = tuple(gold for gold in ([given] if isinstance(given, str) else given) if gold.strip())
            if not text or not golds:
                raise BadConfig(f"{path}:{number}: needs a question, and a right answer to it, such as golden_answers.")
            found.setdefault(text, HeldOutQuestion(text, golds))
    except (OSError, msgspec.DecodeError) as error:
        raise BadConfig(f"{path}: cannot be read as JSON lines ({error}); see docs/training.md.") from None
    if not found:
        raise BadConfig(f"{path}: holds no question; write one JSON object a line.")
    return list(found.values())
