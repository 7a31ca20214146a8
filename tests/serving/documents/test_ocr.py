"""Images and scans, which are read if the extra `ocr` is installed."""

import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from router.errors import BadDocument
from serving.documents.reader import read_parts
from tests.serving.documents.conftest import read, unread

LINES = ("The lighthouse keeper", "Jan Visser left in 1911")


def picture(*lines: str) -> Image.Image:
    image = Image.new("RGB", (700, 200), "white")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((40, 40 + 60 * number), line, fill="black", font=ImageFont.load_default(36))
    return image


@pytest.fixture
def ocr() -> None:
    pytest.importorskip("rapidocr")


@pytest.mark.usefixtures("ocr")
@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "webp", "tif"])
def test_an_image_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"keeper.{suffix}"
    picture(*LINES).save(path)
    title, blocks = read(path)
    assert title == "keeper"
    assert [(block.text, block.page) for block in blocks] == [("\n".join(LINES), None)]


@pytest.mark.usefixtures("ocr")
def test_pages_of_a_scan_are_read(tmp_path: Path) -> None:
    """A blank page has no text, and is no page that could not be read."""
    for name in ("scan.pdf", "scan.tif"):
        pages = [picture(line) for line in LINES]
        pages[0].save(tmp_path / name, save_all=True, append_images=pages[1:])
        blocks = read(tmp_path / name)[1]
        assert [(block.text.strip(), block.page) for block in blocks] == [
            (LINES[0], 1),
            (LINES[1], 2),
        ]
        assert unread(tmp_path / name) == ""


@pytest.mark.usefixtures("ocr")
def test_a_large_image_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path = tmp_path / "bomb.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b""))
    with pytest.raises(BadDocument, match="60000 × 60000 pixels has more than 50 million pixels"):
        list(read_parts(path))


@pytest.mark.usefixtures("ocr")
def test_a_file_that_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("not an image")
    with pytest.raises(BadDocument, match="cannot identify image file"):
        list(read_parts(tmp_path / "a.png"))


def test_without_the_extra_an_image_is_skipped_with_advice(tmp_path: Path) -> None:
    picture(*LINES).save(tmp_path / "a.png")
    picture(*LINES).save(tmp_path / "a.pdf")
    program = (
        "import sys\nfrom pathlib import Path\nsys.modules['rapidocr'] = None\n"
        "from router.errors import BadDocument\n"
        "from serving.documents.reader import read_parts\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        list(read_parts(Path(name)))\n"
        "    except BadDocument as error:\n        print(error)\n"
    )
    files = [str(tmp_path / name) for name in ("a.png", "a.pdf")]
    done = subprocess.run(
        [sys.executable, "-c", program, *files], capture_output=True, text=True, check=True
    )
    image, scan = done.stdout.splitlines()
    assert "a.png: is an image; to read it by OCR, run " in image
    assert "a.pdf: contains no text, as if its pages were scanned; to read it by OCR, run " in scan
    assert "ocr" in image.rpartition("run ")[2]
