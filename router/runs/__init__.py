"""Runs: the gateway that leads them, from admission to what is stored."""

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
