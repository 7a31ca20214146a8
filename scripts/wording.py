"""Find phrases that the project's style forbids: `python scripts/wording.py [FILE …]`. The exit
status is 1 if any is found.

Without FILE, searches all docstrings, comments and string literals in the code, comments in protos,
page templates and the docs. CONTRIBUTING.md says what to write instead.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = ("router", "serving", "executor_sft", "benchmarks", "protos/rolegate/client", "scripts")
TEXTS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**/*.md",
    "protos/rolegate/v1/*.proto",
    "router/edge/pages/templates/*.html",
)
NOT_PROSE = frozenset({"wording.py", "relations.py"})
"""Files that are not searched, because their texts are data: the forbidden phrases, and the
sentences of the mini world.
"""
PHRASES = re.compile(
    r"""\b(?:
    who(?:ever|mever|soever) | whatever | whose\ it\ is | (?:is|are|was|were|be|been)\ told
    | hears?\ of | heard\ of | g(?:o|oes|one|oing)\ on\ with | not\ to\ be\ had
    | (?:there\ is\ )?nobody\ (?:to|is\ left)\b | anew | for\ good | of\ (?:its|their|his)\ own
    | besides? | (?<!all\ )at\ once
    )\b
    | <{7}\ | >{7}\  # marks of a merge conflict
    """,
    re.IGNORECASE | re.VERBOSE,
)
OPENING = re.compile(r"(?:Of|What|Whoever|Whose|The same|Those|Who|Whether or not)\b")
"""Words with which a docstring must not begin. It should begin with a verb or a noun phrase."""


def findings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number and the forbidden wording of each finding in a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _in_code(text)
        return
    off = False
    for number, line in enumerate(text.splitlines(), 1):
        if "wording: o" in line:
            off = "wording: off" in line
        if not off:
            yield from ((number, match[0]) for match in PHRASES.finditer(line))


def _in_code(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the forbidden wording of each finding in Python code: in its
    docstrings, string literals and comments.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documents = str(node.value.value).strip()
            if opening := OPENING.match(documents):
                yield node.lineno, f"begins with {opening[0]!r}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            unwrapped = " ".join(node.value.split())
            yield from ((node.lineno, match[0]) for match in PHRASES.finditer(unwrapped))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from ((token.start[0], match[0]) for match in PHRASES.finditer(token.string))


def main(arguments: list[str]) -> int:
    """Print each finding as `FILE:LINE: WORDING`. Return the exit status.

    `arguments`: files to search; empty for all files of the project.
    """
    if arguments:
        files = [Path(argument).resolve() for argument in arguments]
    else:
        files = [file for folder in CODE for file in sorted((ROOT / folder).rglob("*.py"))]
        files += [file for pattern in TEXTS for file in sorted(ROOT.glob(pattern))]
    count = 0
    for file in files:
        if "_pb2" in file.name or file.name in NOT_PROSE:
            continue
        for number, wording in sorted(findings(file)):
            print(f"{file.relative_to(ROOT)}:{number}: {wording}")
            count += 1
    print(f"{count} to be reworded (CONTRIBUTING.md)" if count else "the wording is plain")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
