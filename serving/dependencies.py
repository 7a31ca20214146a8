"""Extras of rolegate that bring packages which are not there."""

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, metadata
from importlib.util import find_spec

from router.errors import BadConfig

_OURS = "rolegate"
_NEEDED = re.compile(r"""(?P<package>[\w.-]+)(?:\[(?P<extras>[^]]+)\])?.*extra == ["'](?P<extra>[\w-]+)["']""")


def need(command: str, *modules: str) -> None:
    """Raise `BadConfig` where one of the modules that a command will need is missing, before it has done anything."""
    for module in modules:
        if find_spec(module) is None:
            advice = missing_extra(module, command) or "is rolegate installed as the README says?"
            raise BadConfig(f"the package {module} is missing; {advice}")


def missing_extra(module: str | None, command: str) -> str:
    """The extra to install where a command misses a module: that of the command's name where it brings the module,
    else the smallest one that does; empty where none does.
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
    bringing = [extra for extra in brought if any(_is_of(package, wanted) for package in brought[extra])]
    if not bringing:
        return ""
    extra = min(bringing, key=lambda extra: (extra != command, len(brought[extra])))
    return f"pip install 'rolegate[{extra}]', or in a checkout: sh scripts/setup.sh .venv {extra}"


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
