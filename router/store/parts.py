"""Encoding and decoding of runs part by part, so that other threads can run in between.

msgspec holds Python's interpreter lock while it encodes or decodes a value, which takes 100 ms for
a large table. So the events, calls and executions of a run are encoded and decoded one at a time.
"""

from typing import Any, TypeVar, get_args, get_origin

from msgspec import DecodeError, Raw, Struct, msgpack
from msgspec.structs import fields, replace

from router.trace import Run
from router.trace.values import TableRun

S = TypeVar("S", bound=Struct)
_MANY = 500
"""Runs with at least this many events and calls are encoded in parts. For a smaller run, encoding
in parts would only take longer.
"""
_LARGE_BYTES = 1 << 20
"""Traces of at least this many bytes are decoded in parts."""
_encode = msgpack.Encoder().encode
_read_list = msgpack.Decoder(list[Raw]).decode
_read_map = msgpack.Decoder(dict[str, Raw]).decode


def encoded_in_parts(run: Run) -> Run:
    """Return a copy of a run in which the events, calls and executions are encoded already, as
    `msgspec.Raw`. The copy can be encoded, but not used otherwise. A small run is returned
    unchanged.
    """
    if len(run.events) + len(run.calls) < _MANY:
        return run
    result = run.result
    if isinstance(result, TableRun):
        result = replace(result, executions=_encoded(result.executions))
    return replace(run, result=result, events=_encoded(run.events), calls=_encoded(run.calls))


def decode_run(trace: bytes) -> Run:
    """Return the run that a trace in MessagePack contains. Raises `msgspec.DecodeError`."""
    if len(trace) < _LARGE_BYTES:
        return msgpack.decode(trace, type=Run)
    run = _read_map(trace)
    result = run.get("result", Raw())
    kind = msgpack.decode(result, type=_Kind | None)
    if kind is None or kind.type != TableRun.__name__:
        return _struct(Run, run)
    del run["result"]
    return _struct(Run, run, result=_struct(TableRun, _read_map(result)))


class _Kind(Struct):
    type: str = ""


def _encoded(parts: tuple[Any, ...]) -> tuple[Raw, ...]:
    return tuple(Raw(_encode(part)) for part in parts)


def _struct(struct: type[S], given: dict[str, Raw], **decoded: Any) -> S:
    known = {field.name: field.type for field in fields(struct)}
    try:
        for name in given.keys() & known.keys():
            decoded[name] = _decoded(given[name], known[name])
        return struct(**decoded)
    except TypeError as error:  # a field is missing
        raise DecodeError(str(error)) from error


def _decoded(value: Raw, kind: Any) -> Any:
    if get_origin(kind) is tuple and get_args(kind)[1:] == (...,):
        item = msgpack.Decoder(get_args(kind)[0])
        return tuple(item.decode(part) for part in _read_list(value))
    return msgpack.decode(value, type=kind)
