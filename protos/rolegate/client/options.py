"""Check of option names: a misspelt limit must not be ignored."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar, Unpack, get_args

P = ParamSpec("P")
Result = TypeVar("Result")


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
