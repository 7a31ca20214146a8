"""Which extra of rolegate brings a package that is not there."""

import re
from importlib.metadata import PackageNotFoundError, metadata

_NEEDED = re.compile(r"""(?P<package>[\w.-]+).*extra == ["'](?P<extra>[\w-]+)["']""")


def missing_extra(module: str | None, command: str) -> str:
    """What to install where a command misses a module: the extra that has its name, else the first one that brings the
    module; empty where none does.
    """
    try:
        ours = metadata("rolegate")
    except PackageNotFoundError:
        return ""
    package = (module or "").partition(".")[0].replace("_", "-")
    extras = ours.get_all("Provides-Extra") or []
    needed = filter(None, map(_NEEDED.match, ours.get_all("Requires-Dist") or []))
    bringing = [one["extra"] for one in needed if package and one["package"].lower().startswith(package)]
    extra = command if command in extras else next(iter(bringing), "")
    return f"pip install 'rolegate[{extra}]', or in a checkout: sh scripts/setup.sh .venv {extra}" if extra else ""
