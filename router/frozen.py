"""Base class of values."""

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Frozen(msgspec.Struct, frozen=True):
    """Base of immutable values: a msgspec struct. Its fields cannot be set, nor those of
    subclasses.
    """
