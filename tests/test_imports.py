"""Importing defines names and does nothing else."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALEMBIC_SCRIPT = ROOT / "router/store/migrations/env.py"
"""Alembic runs it as a program."""
HEAVY = ("torch", "vllm", "faiss", "pymilvus", "transformers", "sentence_transformers", "litellm")


def _modules(package: str) -> list[str]:
    files = sorted((ROOT / package).rglob("*.py"))
    return [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in files
        if file != ALEMBIC_SCRIPT
    ]


def test_importing_loads_nothing_heavy() -> None:
    """Every module of the gateway imports without torch, vLLM, FAISS or LiteLLM, prints nothing,
    and leaves the logger of HTTP servers as it is.
    """
    modules = [*_modules("router"), *_modules("serving")]
    program = "\n".join(
        [
            "import importlib, logging, sys",
            f"for name in {modules!r}: importlib.import_module(name)",
            f"print([name for name in {HEAVY!r} if name in sys.modules])",
            "print(logging.getLogger('http').filters)",
        ]
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert (process.stdout, process.stderr) == ("[]\n[]\n", "")
