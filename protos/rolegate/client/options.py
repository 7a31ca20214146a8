"""Check of option names: a misspelt limit must not be ignored."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack, get_args

P = ParamSpec("P")
Result = TypeVar("Result")


def enum_name(enum: Any, option: str, choice: str | None) -> str | None:
    """Return the enum's name for the choice of an option (lower case, without the prefix);
    None and "" stay as they are. Raises `ValueError` for an unknown choice.
    """
    names = {name.lower(): name for name in enum.keys()[1:]}
    prefix = enum.keys()[0].removesuffix("UNSPECIFIED").lower()
    if choice and f"{prefix}{choice}" not in names:
        known = ", ".join(name.removeprefix(prefix) for name in names)
        raise ValueError(f"{option} must be one of {known}, got {choice!r}.")
    return choice and names[f"{prefix}{choice}"]


def checked(call: Callable[P, Result]) -> Callable[P, Result]:
    """Make `call` raise `TypeError` for a keyword that is neither a parameter nor in its unpacked
    `TypedDict`; the error suggests the nearest name.
    """
    known = set(call.__annotations__)
    for parameter, kind in call.__annotations__.items():
        if getattr(kind, "__origin__", None) is Unpack:
            known ^= {parameter, *get_args(kind)[0].__annotations__}

    @wraps(call)
    def checking(*args: P.args, **options: P.kwargs) -> Result:
        for name in options.keys() - known:
            near = get_close_matches(name, known, 1) or sorted(known - {"return"})
            raise TypeError(f"unknown option {name}; did you mean {', '.join(near)}?")
        return call(*args, **options)

    return checking
