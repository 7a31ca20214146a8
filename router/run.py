"""A finished run: what is stored, and what the client gets."""

from typing import Literal

import msgspec

from router.execution import Conversation, Execution
from router.ledger import Call, RoleName
from router.search import Trajectory

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
    result: Trajectory | Execution | Conversation | None
    """By `kind`; None where the run did not get that far."""
    settings: dict[RoleName, RoleSetting]
    calls: tuple[Call, ...]
    started_at: float
    """Unix time, seconds."""
    duration_s: float
