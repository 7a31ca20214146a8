"""Writes small compound files, as Outlook's messages are (MS-CFB, version 3)."""

import struct
from collections.abc import Mapping

_SECTOR = 512
_MINI = 64
_FREE = 0xFFFFFFFF
_END = 0xFFFFFFFE
_FAT = 0xFFFFFFFD


def compound_file(streams: Mapping[str, bytes]) -> bytes:
    """Return a compound file with streams in its root, all in the mini stream."""
    mini = b""
    mini_fat: list[int] = []
    entries: list[tuple[str, int, int]] = []
    for name, content in streams.items():
        count = -(-len(content) // _MINI)
        first = len(mini_fat)
        entries.append((name, first if count else _END, len(content)))
        mini_fat += [first + number + 1 for number in range(count)]
        if count:
            mini_fat[-1] = _END
        mini += content.ljust(count * _MINI, b"\0")

    # A tree that is a list to the right needs names in the order of length and letters
    entries.sort(key=lambda entry: (len(entry[0]), entry[0].upper()))
    directory = _entry("Root Entry", 5, (1 if entries else _FREE, _FREE), 0, len(mini))
    for number, (name, first, size) in enumerate(entries, 1):
        following = number + 1 if number < len(entries) else _FREE
        directory += _entry(name, 2, (_FREE, following), first, size)

    parts = [
        _padded(mini),
        _padded(struct.pack(f"<{len(mini_fat)}I", *mini_fat), b"\xff"),
        _padded(directory),
    ]
    fat: list[int] = []
    starts: list[int] = []
    for part in parts:
        count = len(part) // _SECTOR
        starts.append(len(fat))
        fat += [len(fat) + number + 1 for number in range(count)]
        fat[-1] = _END
    fat_sector = len(fat)
    fat.append(_FAT)
    header = struct.pack(
        "<8s16xHHHHH6xIIIIIIIIII",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", 0x3E, 3, 0xFFFE, 9, 6,
        0, 1, starts[2], 0, 4096, starts[1], len(parts[1]) // _SECTOR, _END, 0, fat_sector,
    ).ljust(_SECTOR, b"\xff")  # fmt: skip
    return header + b"".join(parts) + _padded(struct.pack(f"<{len(fat)}I", *fat), b"\xff")


def _entry(name: str, kind: int, links: tuple[int, int], first: int, size: int) -> bytes:
    """Return an entry of the directory. `links`: its first child, and the entry to its right."""
    encoded = name.encode("utf-16-le") + b"\0\0"
    child, right = links
    return struct.pack(
        "<64sHBBIII16xI8x8xIQ", encoded, len(encoded), kind, 1, _FREE, right, child, 0, first, size
    )


def _padded(content: bytes, filler: bytes = b"\0") -> bytes:
    return content.ljust(max(1, -(-len(content) // _SECTOR)) * _SECTOR, filler)


def outlook_streams(subject: str, body: str) -> dict[str, bytes]:
    """Return the streams of a message from ada@example.org without recipients."""
    texts = {0x0037: subject, 0x1000: body, 0x0C1F: "ada@example.org", 0x001A: "IPM.Note"}
    properties = bytes(24) + struct.pack("<II", 0, 0)
    streams = {}
    for tag, text in texts.items():
        encoded = text.encode("utf-16-le")
        properties += struct.pack("<HHIII", 0x001F, tag, 6, len(encoded) + 2, 0)
        streams[f"__substg1.0_{tag:04X}001F"] = encoded
    return streams | {"__properties_version1.0": properties}
