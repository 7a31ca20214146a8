"""Write docs/configuration.md from the types of `serving/config/config.py`. With `--check`, write
nothing; exit with status 1 if the file is out of date.
"""

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import NODEFAULT
from msgspec.inspect import (
    DictType,
    Field,
    LiteralType,
    Metadata,
    NoneType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from serving.config.config import Config
from serving.field_docs import field_docs

PAGE = Path(__file__).parent.parent / "docs/configuration.md"
HEAD = """\
# Configuration

One TOML file; `rolegate init` writes one, `rolegate check` says what is wrong in it. Without
`--config` or `--preset`, commands take `./rolegate.toml`, or else the preset `mini`, the demo.
Complete files: [`serving/presets`](../serving/presets). Paths are relative to the file; `~` is the
home folder. A path that begins with `shipped:`, such as `shipped:prompts/full/delegation.txt`, is a
file that comes with the package. Unknown keys are refused. The file contains no secrets; it names
the environment variables that contain them.

This page is made by `make docs` from the types in
[`serving/config/config.py`](../serving/config/config.py). """


def page() -> str:
    """Return the page in Markdown: a table for each section of the config file."""
    keys: dict[type, list[str]] = {}
    _collect("", Config, keys)
    return "\n".join(
        [HEAD, *(_section(cls, names) for cls, names in keys.items() if _fields(cls, plain=True))]
    )


def _collect(key: str, cls: type, keys: dict[type, list[str]]) -> None:
    """Add the section `cls`, and all sections inside it, to `keys`. A section is mapped to all keys
    of the config file under which it can occur. `key`: the key of `cls`, such as
    `roles.delegation`; empty for the whole file.
    """
    keys.setdefault(cls, []).append(key)
    for name, inner in _sections(cls):
        _collect(f"{key}.{name}" if key else name, inner, keys)


def _section(cls: type, keys: Sequence[str]) -> str:
    """Return the table of a section. `keys`: keys under which the section can occur."""
    docs = {name: doc.replace("|", "\\|") for name, doc in field_docs(cls).items()}
    rows = [
        (
            f"| `{field.encode_name}` | {_kind(field.type)} | {_default(field)} | "
            f"{docs.get(field.name, '')} |"
        )
        for field in _fields(cls, plain=True)
    ]
    title = ", ".join(f"`[{key}]`" for key in keys)
    lead = " ".join(inspect.cleandoc(cls.__doc__ or "").split())
    return "\n".join(
        [f"## {title}", "", lead, "", "| key | value | default | |", "|---|---|---|---|", *rows, ""]
    )


def _fields(cls: type, *, plain: bool = False) -> tuple[Field, ...]:
    """Return the fields of a section. `plain`: leave out fields that are sections themselves."""
    kind = type_info(cls)
    assert isinstance(kind, StructType)
    within = {name.removesuffix(".NAME") for name, _ in _sections(cls)} if plain else ()
    return tuple(field for field in kind.fields if field.encode_name not in within)


def _sections(cls: type) -> Iterator[tuple[str, type]]:
    """Yield the key and the type of each section directly inside `cls`."""
    for field in _fields(cls):
        match field.type:
            case StructType(cls=inner) | UnionType(types=(StructType(cls=inner), *_)):
                yield field.encode_name, inner
            case DictType(value_type=StructType(cls=inner)):
                yield f"{field.encode_name}.NAME", inner


_WORDS = {
    "StrType": "text",
    "IntType": "whole number",
    "FloatType": "number",
    "BoolType": "true or false",
    "DictType": "table",
}
"""Words for the type of a value."""
_MOST = 10**6
"""A limit above this number is only a protection against typing errors, so the page does not show
it.
"""


def _kind(kind: Type) -> str:
    """Return the type of a value in words, with its limits."""
    text = _WORDS.get(type(kind).__name__, "")
    match kind:
        case Metadata(type=inner, extra=extra):
            text = (extra or {}).get("mark") or _kind(inner)
        case UnionType(types=types):
            text = " or ".join(_kind(each) for each in types if not isinstance(each, NoneType))
        case VarTupleType(item_type=item):
            text = f"list of: {_kind(item)}"
        case LiteralType(values=values):
            text = ", ".join(f"`{value}`" for value in values)
    signs = (("≥", "ge"), (">", "gt"), ("≤", "le"), ("<", "lt"))
    bounds = [(sign, getattr(kind, name, None)) for sign, name in signs]
    limits = [f"{sign} {bound:g}" for sign, bound in bounds if bound is not None and bound <= _MOST]
    return f"{text} {', '.join(limits)}".strip()


def _default(field: Field) -> str:
    """Return the default of a field for the table; empty if the default is None."""
    if field.required:
        return "required"
    default = field.default_factory() if field.default is NODEFAULT else field.default
    return "" if default is None else f"`{msgspec.json.encode(default).decode()}`"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page(), "utf-8")
    elif PAGE.read_text("utf-8") != page():
        sys.exit("docs/configuration.md: is out of date; run `make docs`.")
