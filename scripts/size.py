"""Measure the size and density of the code, and compare them with their limits: `python
scripts/size.py [--json]`. The exit status is 1 if a limit is exceeded.

Size is counted in tokens of Python's `tokenize`, without comments, docstrings, line ends and
indentation. Generated code is not counted. The mini world and the training of its models are
counted separately.
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("router", "serving", "executor_sft", "benchmarks", "protos/rolegate/client")
APART = ("executor_sft/miniworld", "executor_sft/minimodel")
"""Folders that are counted separately: they generate a fictional world for tests and the demo, and
are not a part of the gateway.
"""
WIDTH = 100
MOST_TOKENS = 365_650
MOST_DENSITY = 0.72
"""Max statements per line of code. Blank lines, comments and docstrings are not lines of code."""
MOST_UNDOCUMENTED = 0.08
"""Max share of public functions, methods and classes without a docstring."""
MOST_EXCEPTIONS = 10
"""Max number of `noqa` and `type: ignore` comments outside tests."""
MOST_MODULES = 19
"""Max modules in one folder."""
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
"""Types of tokens that are not counted."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Module(NamedTuple):
    """A Python file of the project, parsed."""

    name: str
    """Path of the file, relative to the project's root."""
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """Package of the module, up to two folders deep, such as `router/store`."""
        if self.name.startswith("protos"):
            return "client"
        folders = self.name.split("/")[:-1]
        return "/".join(folders[:2])


def modules(folders: tuple[str, ...]) -> list[Module]:
    """Return every module in `folders` and their subfolders, except generated ones."""
    files = (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))
    read = []
    for file in files:
        if "_pb2" not in file.name and not file.match("rolegate/client/client.py"):
            text = file.read_text(encoding="utf-8")
            read.append(Module(str(file.relative_to(ROOT)), text, ast.parse(text)))
    return read


def docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    """Yield every statement that consists of a string only: the docstrings, including attributes'
    docstrings.
    """
    for node in ast.walk(tree):
        is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_constant and isinstance(node.value.value, str):
            yield node


def tokens(module: Module) -> int:
    """Return the number of tokens of code in a module."""
    starts = {(node.lineno, node.col_offset) for node in docstrings(module.tree)}
    count = 0
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        documents = token.type == tokenize.STRING and token.start in starts
        if token.type not in LAYOUT and not documents:
            count += 1
    return count


def figures(module: Module) -> Counter[str]:
    """Return the counts of a module. The counts of several modules can be added up."""
    lines = module.text.splitlines()
    comments = list(docstrings(module.tree))
    apart = {
        number for node in comments for number in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    counts = Counter[str](files=1, tokens=tokens(module))
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#") and number not in apart:
            counts["code lines"] += 1
        counts["long lines"] += len(line) > WIDTH
    counts["statements"] = -len(comments)
    for node in ast.walk(module.tree):
        counts["statements"] += isinstance(node, ast.stmt)
        counts["nested conditional expressions"] += _is_nested(node)
        counts["assignments of several values"] += _assigns_several(node)
        if isinstance(node, Definition) and not node.name.startswith("_"):
            counts["public"] += 1
            counts["undocumented"] += ast.get_docstring(node) is None
    counts["exceptions"] = len(re.findall(r"# (?:noqa|type: ignore)", module.text))
    return counts


def _is_nested(node: ast.AST) -> bool:
    """Return whether `node` is a conditional expression that contains another conditional
    expression.
    """
    if not isinstance(node, ast.IfExp):
        return False
    return any(isinstance(inner, ast.IfExp) for inner in ast.walk(node) if inner is not node)


def _assigns_several(node: ast.AST) -> bool:
    """Return whether `node` assigns several unrelated values in one statement, such as `a, b = 1,
    2`. A swap like `a, b = b, a` does not count.
    """
    if not isinstance(node, ast.Assign):
        return False
    targets, value = node.targets[0], node.value
    if not (isinstance(targets, ast.Tuple) and isinstance(value, ast.Tuple)):
        return False
    if any(isinstance(item, ast.Starred) for item in (*targets.elts, *value.elts)):
        return False
    names = {ast.unparse(target) for target in targets.elts}
    read = {ast.unparse(inner) for inner in ast.walk(value) if isinstance(inner, ast.expr)}
    return not names & read


def circles(read: list[Module]) -> list[str]:
    """Return the groups of modules that import each other, directly or through others."""
    by_name = {}
    for module in read:
        dotted = module.name.removeprefix("protos/").removesuffix(".py").replace("/", ".")
        by_name[dotted.removesuffix(".__init__")] = module
    imports = {name: _imported(module, by_name) for name, module in by_name.items()}
    reached = {name: _reachable(name, imports) for name in imports}
    found = set()
    for name in imports:
        group = {other for other in reached[name] if name in reached[other]}
        if group:
            found.add(" <-> ".join(sorted(group | {name})))
    return sorted(found)


def _imported(module: Module, by_name: dict[str, Module]) -> set[str]:
    """Return the names of the project's modules that a module imports, at its top or in a function.
    `by_name`: all modules of the project.
    """
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in by_name else node.module)
    return found & set(by_name)


def _reachable(start: str, imports: dict[str, set[str]]) -> set[str]:
    """Return the names of all modules that `start` imports, directly or through others. `start`
    itself is included only if it is in an import circle. `imports`: imported modules by module.
    """
    reached = set[str]()
    waiting = list(imports[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(imports[name])
    return reached


def density(counts: Counter[str]) -> float:
    """Return the number of statements per line of code."""
    return round(counts["statements"] / max(1, counts["code lines"]), 3)


def main() -> int:
    """Print the figures, and those that exceed their limits. Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print all figures as one JSON object")
    given = parser.parse_args()

    product = modules(FOLDERS)
    rooms: dict[str, Counter[str]] = {}
    total = Counter[str]()
    apart = Counter[str]()
    for module in product:
        counts = figures(module)
        rooms.setdefault(module.room, Counter()).update(counts)
        (apart if module.name.startswith(APART) else total).update(counts)
    tests = Counter[str]()
    for module in modules(("tests",)):
        tests.update(figures(module))

    whole = total + apart
    folders = Counter(
        str(Path(module.name).parent)
        for module in product
        if not module.name.endswith("__init__.py")
    )
    cyclic = circles(product)
    checks: dict[str, tuple[float, float]] = {
        "tokens of code": (total["tokens"], MOST_TOKENS),
        "statements per line of code": (density(whole), MOST_DENSITY),
        f"lines over {WIDTH} columns": (whole["long lines"], 0),
        "nested conditional expressions": (whole["nested conditional expressions"], 0),
        "assignments of several values": (whole["assignments of several values"], 0),
        "import circles": (len(cyclic), 0),
        "share without a docstring": (
            round(whole["undocumented"] / whole["public"], 3),
            MOST_UNDOCUMENTED,
        ),
        "noqa and type: ignore": (whole["exceptions"], MOST_EXCEPTIONS),
        "modules in one folder": (max(folders.values()), MOST_MODULES),
    }
    broken = [
        f"{name}: {value}, at most {most}" for name, (value, most) in checks.items() if value > most
    ]
    broken += [f"import circle: {circle}" for circle in cyclic]

    if given.json:
        rows = {name: {**counts, "density": density(counts)} for name, counts in rooms.items()}
        shown = {"rooms": rows, "apart": apart["tokens"], "tests": tests, "checks": checks}
        print(json.dumps({**shown, "broken": broken}, indent=1))
        return int(bool(broken))
    print(f"{'room':32}{'files':>6}{'tokens':>9}{'density':>9}")
    for name, counts in (*sorted(rooms.items()), ("tests", tests)):
        print(f"{name:32}{counts['files']:6}{counts['tokens']:9}{density(counts):9}")
    print(f"counted apart: {apart['tokens']} tokens in {' and '.join(APART)}")
    for name, (value, most) in checks.items():
        print(f"{name}: {value} of {most}")
    print("\n".join(f"over its limit: {line}" for line in broken) or "within the limits")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
