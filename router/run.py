"""A finished run: what is stored, and what the client gets."""

from typing import Literal

import msgspec

from router.call import Call, RoleName
from router.events import Event
from router.identity import DEFAULT_TENANT
from router.result import Result

RunKind = Literal["answer", "complete", "execute", "shadow"]
RunStatus = Literal["running", "finished", "failed", "cancelled", "interrupted"]


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
    """Empty unless `status` is `failed`; for the operator, as it may name addresses."""
    result: Result | None
    """By `kind`; of a run that did not finish, what there was by then."""
    settings: dict[RoleName, RoleSetting]
    calls: tuple[Call, ...]
    started_at: float
    """Unix time, seconds."""
    duration_s: float
    tenant: str = DEFAULT_TENANT
    request_id: str = ""
    """The client's name for it; empty for none."""
    events: tuple[Event, ...] = ()
    """What happened, in order; event numbers count from 1."""
    redacted: bool = False
    """Whether its texts were left out when it was stored."""
