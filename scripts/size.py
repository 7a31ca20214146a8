"""Measure the product code against its budget: `python scripts/size.py [--json]`; status 1 where a
guard is broken.

Lines are those of `wc -l`, statements those of `ast` without docstrings; generated code is left
out. The guards see to it that the budget is not met by density (docs/decisions).
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "router": "router",
    "serving": "serving",
    "executor_sft": "executor_sft",
    "benchmarks": "benchmarks",
    "client": "protos/rolegate/client",
}
MOST_STATEMENTS, MOST_LINES, MOST_TEST_LINES = 27_800, 47_600, 56_800
BUDGET = {"statements": 14_500, "lines": 24_500, "lines of tests": 22_000}
"""Where the limits are to come down to (docs/decisions/0018)."""
MOST_DENSITY = 0.84
"""Statements per line of code; blank lines, comments and docstrings are none."""
LEAST_DOCUMENTED = 0.90
"""Of public functions, methods and classes."""
MOST_EXCEPTIONS = 10
"""`noqa` and `type: ignore`, tests apart."""
MOST_MODULES = 16
CLAUSE = re.compile(
    r"^(What|Who|Whose|Whoever|Whatever|Which|Where|When|Why|How|That|As|Is|Are|Was|Were|"
    r"Has|Have)\b"
)
"""How a docstring begins that is no noun phrase and no verb."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def docstring(node: ast.AST) -> ast.Expr | None:
    """The statement that is the docstring of a module, class or function."""
    body = getattr(node, "body", [])
    if (
        isinstance(body, list)
        and body
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
    ):
        return body[0] if isinstance(body[0].value.value, str) else None
    return None


def strings(tree: ast.AST) -> Iterator[ast.Expr]:
    """Docstrings, those of attributes included: expressions that are a string and nothing else."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node


def measure(files: list[Path]) -> dict[str, float]:
    """Sum up what is counted over some files."""
    sums = dict.fromkeys(
        ("files", "lines", "statements", "code", "exceptions", "public", "documented", "clauses"), 0
    )
    for file in files:
        text = file.read_text(encoding="utf-8")
        tree, lines = ast.parse(text), text.splitlines()
        apart = {
            number
            for node in strings(tree)
            for number in range(node.lineno, (node.end_lineno or 0) + 1)
        }
        sums["files"] += 1
        sums["lines"] += len(lines)
        sums["statements"] += sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - sum(
            1 for _ in strings(tree)
        )
        sums["code"] += sum(
            bool(line.strip()) and not line.strip().startswith("#") and number not in apart
            for number, line in enumerate(lines, 1)
        )
        sums["exceptions"] += len(re.findall(r"# (?:noqa|type: ignore)", text))
        for node in ast.walk(tree):
            if isinstance(node, Definition) and not node.name.startswith("_"):
                found = docstring(node)
                sums["public"] += 1
                sums["documented"] += found is not None
                sums["clauses"] += found is not None and bool(
                    CLAUSE.match(ast.get_docstring(node) or "")
                )
    return sums


def functions(files: list[Path]) -> list[tuple[int, str]]:
    """Functions with their lengths in lines, the longest first."""
    lengths = []
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                where = f"{file.relative_to(ROOT)}:{node.name}"
                lengths.append(((node.end_lineno or node.lineno) - node.lineno + 1, where))
    return sorted(lengths, reverse=True)


def modules(folder: Path) -> list[Path]:
    """Every module below `folder` that is written by hand."""
    return sorted(file for file in folder.rglob("*.py") if "_pb2" not in file.name)


def main() -> int:
    """Print the figures and what is over its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(";", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object")
    given = parser.parse_args()
    product = {name: modules(ROOT / place) for name, place in FOLDERS.items()}
    figures = {name: measure(files) for name, files in product.items()}
    everything = [file for files in product.values() for file in files]
    total = figures["all"] = measure(everything)
    tests = measure(modules(ROOT / "tests"))
    counts: dict[str, int] = {}
    for file in everything:
        if file.name != "__init__.py":
            folder = str(file.parent.relative_to(ROOT))
            counts[folder] = counts.get(folder, 0) + 1
    checks = {
        "statements": (total["statements"], MOST_STATEMENTS),
        "lines": (total["lines"], MOST_LINES),
        "lines of tests": (tests["lines"], MOST_TEST_LINES),
        "statements per line of code": (
            round(total["statements"] / total["code"], 3),
            MOST_DENSITY,
        ),
        "noqa and type: ignore": (total["exceptions"], MOST_EXCEPTIONS),
        "public definitions without a docstring": (
            round(1 - total["documented"] / total["public"], 3),
            round(1 - LEAST_DOCUMENTED, 3),
        ),
    }
    lengths = sorted(len(file.read_text(encoding="utf-8").splitlines()) for file in everything)
    more = {
        "docstrings that begin with a clause": total["clauses"],
        "median module, lines": lengths[len(lengths) // 2],
        "folders of more than 16 modules": {
            name: n for name, n in counts.items() if n > MOST_MODULES
        },
        "longest functions": [f"{length} {where}" for length, where in functions(everything)[:10]],
    }
    broken = [
        f"{name}: {value}, at most {most}" for name, (value, most) in checks.items() if value > most
    ]
    if given.json:
        print(
            json.dumps(
                {"folders": figures, "tests": tests, "checks": checks, **more, "broken": broken},
                indent=1,
            )
        )
        return int(bool(broken))
    for name, row in {**figures, "tests": tests}.items():
        print(
            f"{name:14}{row['files']:5} files {row['lines']:7} lines "
            f"{row['statements']:7} statements"
        )
    for name, (value, most) in checks.items():
        print(
            f"{name}: {value} of {most}" + (f" (budget: {BUDGET[name]})" if name in BUDGET else "")
        )
    for name, shown in more.items():
        print(f"{name}: {shown}")
    print("\n".join(f"over its limit: {line}" for line in broken) or "within the limits")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
