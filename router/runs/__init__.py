"""Runs: the gateway and the lifecycle of its runs, from admission to storage."""

from router.runs.admission import Admission
from router.runs.archive import RunFilter
from router.runs.gateway import Gateway
from router.runs.lifecycle import RequestOptions, RunLifecycle
from router.runs.observers import Observer
from router.runs.queries import Runs

__all__ = [
    "Admission",
    "Gateway",
    "Observer",
    "RequestOptions",
    "RunFilter",
    "RunLifecycle",
    "Runs",
]
