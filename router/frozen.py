"""Base class of values."""

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Frozen(msgspec.Struct, frozen=True):
    """Base class of immutable values: a msgspec struct. Fields of its subclasses cannot be changed
    after construction.
    """
