"""What is told of runs that did not end well, and to whom."""

import re

import msgspec
from google.rpc import code_pb2, status_pb2

from router.edge.status import COME_BACK_S, STATUS, new_status
from router.identity import Identity
from router.run import Run

_ROWS = {kind.__name__: row for kind, row in STATUS.items()}


def as_seen_by(run: Run, identity: Identity) -> Run:
    """`run` without what is the operator's alone: addresses, and errors that may name them."""
    if identity.tenant is None:
        return run
    calls = tuple(msgspec.structs.replace(call, deployment="") for call in run.calls)
    return msgspec.structs.replace(run, calls=calls, error=_plain(run.error) if run.error else "")


def failure_of(run: Run, identity: Identity) -> status_pb2.Status:
    """The status with which a run that did not finish ends for those who watch it."""
    if run.status == "cancelled":
        return new_status(code_pb2.CANCELLED, f"Run {run.id} was cancelled.", "RUN_CANCELLED")
    if run.status == "interrupted":
        text = f"Run {run.id} was interrupted, because its gateway was killed; ask again."
        return new_status(code_pb2.UNAVAILABLE, text, "RUN_INTERRUPTED")
    code, reason = _ROWS.get(_name(run.error), (code_pb2.INTERNAL, "INTERNAL"))
    wait_s = COME_BACK_S if code == code_pb2.UNAVAILABLE else None
    return new_status(code, f"Run {run.id} failed: {as_seen_by(run, identity).error}", reason, wait_s=wait_s)


def _plain(error: str) -> str:
    """The class of a stored error in words: `upstream unavailable`."""
    name = _name(error)
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower() if name in _ROWS else "internal error"


def _name(error: str) -> str:
    return error.partition(":")[0]
