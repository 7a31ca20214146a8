"""Extras of rolegate that bring packages which are not there."""

import re
import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from router.errors import BadConfig

_OURS = "rolegate"
_NEEDED = re.compile(
    r"""(?P<package>[\w.-]+)(?:\[(?P<extras>[^]]+)\])?.*extra == ["'](?P<extra>[\w-]+)["']"""
)


def need(command: str, *modules: str) -> None:
    """Raise `BadConfig` where one of the modules that a command will need is missing, before it
    has done anything.
    """
    for module in modules:
        if find_spec(module) is None:
            advice = missing_extra(module, command) or "is rolegate installed as the README says?"
            raise BadConfig(f"the package {module} is missing; {advice}")


def missing_extra(module: str | None, command: str) -> str:
    """A shell command that installs the extra which brings a missing module: that of the command's
    name where it does, else the smallest one; empty where none does.
    """
    try:
        lines = metadata(_OURS).get_all("Requires-Dist") or []
    except PackageNotFoundError:
        return ""
    needs: dict[str, list[re.Match[str]]] = {}
    for found in filter(None, map(_NEEDED.match, lines)):
        needs.setdefault(found["extra"], []).append(found)
    wanted = (module or _OURS).partition(".")[0].replace("_", "-").lower()
    brought = {extra: _packages(extra, needs) for extra in needs}
    bringing = [
        extra for extra in brought if any(_is_of(package, wanted) for package in brought[extra])
    ]
    if not bringing:
        return ""
    extra = min(bringing, key=lambda extra: (extra != command, len(brought[extra])))
    setup = Path(__file__).parents[1] / "scripts/setup.sh"
    if setup.is_file():  # a checkout, whose script knows which build of torch this machine takes
        return shlex.join(["sh", str(setup), sys.prefix, extra])
    told = distribution(_OURS).read_text("direct_url.json")
    url = urlsplit(msgspec.json.decode(told)["url"] if told else "")
    source = (
        unquote(url.path) if url.scheme == "file" and Path(unquote(url.path)).exists() else _OURS
    )
    return shlex.join([sys.executable, "-m", "pip", "install", f"{source}[{extra}]"])


def _packages(extra: str, needs: Mapping[str, list[re.Match[str]]]) -> set[str]:
    """Packages that an extra brings, by itself and by other extras of ours that it names."""
    found: set[str] = set()
    for one in needs.get(extra, ()):
        if one["package"] == _OURS:
            found.update(*(_packages(other.strip(), needs) for other in one["extras"].split(",")))
        else:
            found.add(one["package"].lower())
    return found


def _is_of(package: str, module: str) -> bool:
    """Whether a package has the module's name, or begins with it: faiss is in faiss-cpu."""
    return package == module or package.startswith(f"{module}-")
