"""Versions as they are to become."""

import time
from collections.abc import Sequence

import msgspec

from router.errors import BadRequest
from router.executor_version import ExecutorVersion, VersionState
from router.version_book import DecidedBy, Decision, TrialFigures


class Draft:
    """Changes versions, and writes down why; of no effect until a book takes it."""

    def __init__(
        self, versions: Sequence[ExecutorVersion], decided_by: DecidedBy, figures: TrialFigures | None = None
    ) -> None:
        """`versions`: all that are on record. `figures`: what the decisions rest on."""
        self.expected, self.decisions = tuple(versions), list[Decision]()
        self._by, self._figures = decided_by, figures
        self._now = {version.version: version for version in versions}

    @property
    def changed(self) -> list[ExecutorVersion]:
        """Those that are to be replaced."""
        return [self._now[version.version] for version in self.expected if self._now[version.version] != version]

    @property
    def active(self) -> ExecutorVersion | None:
        """The version that is active by now."""
        return next((version for version in self._now.values() if version.state == "active"), None)

    @property
    def candidate(self) -> ExecutorVersion | None:
        """The version that is shadow or canary by now."""
        return next((version for version in self._now.values() if version.state in ("shadow", "canary")), None)

    def find(self, name: str) -> ExecutorVersion:
        """A version by its name. Raises `BadRequest`."""
        if name not in self._now:
            raise BadRequest(f"version {name!r}: is not on record; register it, or list those that are.")
        return self._now[name]

    def move(
        self, version: ExecutorVersion, state: VersionState, decision: str, reason: str = "", share: float = 0.0
    ) -> None:
        """Bring a version into a state; where it is in it, only its share changes, and its trial goes on."""
        now = time.time()
        state_at = version.state_at if version.state == state else now
        moved = msgspec.structs.replace(version, state=state, share=share, state_at=state_at)
        self._now[version.version] = moved
        self.decisions.append(
            Decision(version.version, decision, version.state, state, self._by, now, reason, self._figures)
        )

    def stop_candidate(self, reason: str) -> None:
        """Ask nothing any more of the version that is tried, if there is one."""
        if candidate := self.candidate:
            self.move(candidate, "registered", "stop", reason)

    def promote(self, version: ExecutorVersion, reason: str = "") -> None:
        """Make a version the active one, and retire the one that is."""
        if active := self.active:
            self.move(active, "retired", "retire", f"{version.version} is active now.")
        self.move(version, "active", "promote", reason)

    def restore(self, active: ExecutorVersion) -> None:
        """Roll the active version back to the one that was retired last. Raises `BadRequest` where there is none."""
        retired = [version for version in self._now.values() if version.state == "retired"]
        if not retired:
            raise BadRequest(
                f"version {active.version!r}: no version was active before it, so there is none to go back to; promote "
                "another one instead."
            )
        self.move(active, "rolled_back", "roll_back")
        before = max(retired, key=lambda version: version.state_at)
        self.move(before, "active", "promote", f"{active.version} was rolled back.")
