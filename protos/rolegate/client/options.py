"""Check of option names: a misspelt limit must not be ignored."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack, get_args

P = ParamSpec("P")
Result = TypeVar("Result")


def enum_number(enum: Any, option: str, choice: str) -> int:
    """Return the number of the choice of an option (lower case, without the prefix of the enum,
    which is a descriptor). Raises `ValueError` for an unknown choice.
    """
    first, *others = enum.values
    prefix = first.name.removesuffix("UNSPECIFIED")
    numbers: dict[str, int] = {
        value.name.removeprefix(prefix).lower(): value.number for value in others
    }
    if choice not in numbers:
        raise ValueError(f"{option} must be one of {', '.join(numbers)}, got {choice!r}.")
    return numbers[choice]


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
