"""A finished run: what is stored, and what the client gets."""

from typing import Literal

import msgspec

from router.context import Result
from router.ledger import Call, RoleName

RunKind = Literal["answer", "complete", "execute"]
RunStatus = Literal["finished", "failed", "cancelled"]


class RoleSetting(msgspec.Struct, frozen=True):
    """What a role was at the time of a run."""

    model: str
    prompt_sha256: str


class Run(msgspec.Struct, frozen=True):
    """One request with everything it said, found and spent."""

    id: str
    kind: RunKind
    request: str
    """The question, the sub-query, or the last message."""
    status: RunStatus
    error: str
    """Empty unless `status` is `failed`."""
    result: Result | None
    """By `kind`; of a run that did not finish, what there was by then."""
    settings: dict[RoleName, RoleSetting]
    calls: tuple[Call, ...]
    started_at: float
    """Unix time, seconds."""
    duration_s: float
