"""Base class of values."""

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Frozen(msgspec.Struct, frozen=True):
    """A value: a msgspec struct whose fields cannot be set, and neither can those of a subclass."""
