"""Versions of the executor: which version serves which runs, trials of new versions, and the gate
that decides on them.
"""

from router.versions.book import ExecutorVersion, VersionDecision
from router.versions.gate import GateRule
from router.versions.held_out import HeldOutQuestion, HeldOutTest
from router.versions.routing import VersionRouting
from router.versions.trials import Trials
from router.versions.versions import Versions

__all__ = [
    "ExecutorVersion",
    "GateRule",
    "HeldOutQuestion",
    "HeldOutTest",
    "Trials",
    "VersionDecision",
    "VersionRouting",
    "Versions",
]
