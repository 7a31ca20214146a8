"""Checks of the names and values of options, so that a misspelt option is not ignored."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack, get_args

P = ParamSpec("P")
Result = TypeVar("Result")


def enum_number(enum: Any, option: str, choice: str) -> int:
    """Return the number of an enum value.

    `enum`: descriptor of the enum. `option`: name of the option, for the error message. `choice`:
    name of the value, in lower case and without the prefix of the enum. Raises `ValueError` if
    there is no such value.
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
    """Wrap `call` so that it raises `TypeError` for an unknown keyword argument.

    The known arguments are the parameters of `call`; for a parameter `**options: Unpack[…]`, the
    keys of its `TypedDict`. The error message suggests a similar name, or else lists all options.
    """
    known = set(call.__annotations__)
    for parameter, kind in call.__annotations__.items():
        if getattr(kind, "__origin__", None) is Unpack:
            known ^= {parameter, *get_args(kind)[0].__annotations__}

    @wraps(call)
    def checking(*args: P.args, **options: P.kwargs) -> Result:
        for name in options.keys() - known:
            hint = f"the options are: {', '.join(sorted(known - {'return'}))}."
            if near := get_close_matches(name, known, 1):
                hint = f"did you mean {near[0]}?"
            raise TypeError(f"unknown option {name}; {hint}")
        return call(*args, **options)

    return checking
