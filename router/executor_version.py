"""Versions of the executor, and which of them works for whom."""

import hashlib
from typing import Literal

import msgspec

VersionState = Literal["registered", "shadow", "canary", "active", "retired", "rolled_back"]
Stage = Literal["shadow", "canary"]
_STAGES: dict[VersionState, Stage] = {"shadow": "shadow", "canary": "canary"}


class ExecutorVersion(msgspec.Struct, frozen=True):
    """A version on record."""

    version: str
    """Its name, which is also that of its model; never used for another one."""
    state: VersionState
    share: float
    """Of a canary: the share of runs that it works for, 0 to 1."""
    state_at: float
    """When it came into its state; Unix time, seconds."""
    registered_at: float
    manifest: str = ""
    """What it was made of, as JSON; empty for the model that the config names."""


class Traffic(msgspec.Struct, frozen=True):
    """Who works for whom."""

    active: str
    candidate: str | None = None
    """The version that is shadow or canary; there is at most one."""
    stage: Stage | None = None
    """What the candidate is; None where there is none."""
    share: float = 0.0
    """Of a canary."""

    def serving(self, run_id: str) -> str:
        """The version that works in a run: the same one for the same run, and a canary keeps its runs as its share
        grows.
        """
        if self.stage == "canary" and self.candidate is not None and _place(run_id) < self.share:
            return self.candidate
        return self.active

    def beside(self, run_id: str) -> str | None:
        """The version to compare with whoever serves a run; None where nothing is to be compared."""
        if self.candidate is None:
            return None
        if self.stage == "shadow":
            return self.candidate
        return self.active if self.serving(run_id) == self.candidate else None


def traffic_of(versions: "list[ExecutorVersion]") -> Traffic | None:
    """What the states of all versions amount to; None while none is active."""
    active = next((version.version for version in versions if version.state == "active"), None)
    if active is None:
        return None
    for version in versions:
        if stage := _STAGES.get(version.state):
            return Traffic(active, version.version, stage, version.share)
    return Traffic(active)


def _place(run_id: str) -> float:
    """Where a run stands among all, 0 to 1, by its identifier alone."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8]) / 2**64
