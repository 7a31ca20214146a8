"""Server-sent events, read from bytes that may be split anywhere."""

MAX_EVENT_BYTES = 2**20
"""No chat completion chunk comes near; a line without an end must not fill the memory."""


class EventTooLong(ValueError):
    """An event grew past `MAX_EVENT_BYTES`."""


class EventReader:
    """Feed it what arrives; it returns the data of every event that is complete by then.

    Lines end in LF, CR LF or CR. Comments, fields other than `data` and events without data are passed over; what
    stands after the last blank line is no event, as the standard has it.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._after_cr = False
        self._data: list[bytes] = []
        self._size = self._rest_size = 0

    @property
    def size(self) -> int:
        """Bytes that are kept until their event is complete."""
        return self._rest_size + self._size

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that `received` completes. Raises `EventTooLong`."""
        if self._after_cr and received:
            received, self._after_cr = received.removeprefix(b"\n"), False
        self._after_cr |= received.endswith(b"\r")
        self._rest.append(received)
        self._rest_size += len(received)
        events: list[bytes] = []
        if b"\n" in received or b"\r" in received:  # a long line is put together once, not with every piece
            lines = b"".join(self._rest).splitlines(keepends=True)
            self._rest = [lines.pop()] if not lines[-1].endswith((b"\n", b"\r")) else []
            self._rest_size = sum(map(len, self._rest))
            bare = (line.rstrip(b"\r\n") for line in lines)
            events = [event for line in bare if (line or self._data) and (event := self._line(line))]
        if self.size > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def _line(self, line: bytes) -> bytes:
        """Take one line; the event's data where the line is blank and so ends it."""
        if not line:
            event, self._data, self._size = b"\n".join(self._data), [], 0
            return event
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value) + 1  # even empty lines fill the memory
        return b""
