"""Recognize the text of images and scanned pages, if the extra `ocr` is installed."""

import resource
import signal
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from router.errors import BadDocument
from serving.dependencies import missing_extra
from serving.documents.document import Document, TextBlock, Unread, title_of

MAX_PAGES = 50
"""Max pages of a document to read by OCR. Further pages are not read."""
MAX_SIDE = 1600
"""Max width and height of an image for OCR, in pixels. A larger image is scaled down first."""
MODEL_BYTES = 512 << 20
"""Max memory for the OCR models in bytes. It is added to the max memory for a document."""
_MAX_MEGAPIXELS = 50
_PAGE_SECONDS = 60.0
"""Seconds that OCR of a page adds to the time limit of its document."""


def has_ocr() -> bool:
    """Return True if the extra `ocr` is installed."""
    return find_spec("rapidocr") is not None


def how_to_read() -> str:
    """Return advice for the end of an error message about a document that only OCR can read."""
    if has_ocr():
        return "leave it out"
    return f"to read it by OCR, run {missing_extra('rapidocr')}; or leave it out"


def recognised(image: Any) -> str:
    """Find the text in a Pillow image by OCR. Return it with one line per text box, from top to
    bottom.
    """
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    if left:
        signal.setitimer(signal.ITIMER_REAL, left + _PAGE_SECONDS)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    return "\n".join(_engine()(image.convert("RGBA")).txts or ())


@cache
def _engine() -> Any:
    from rapidocr import RapidOCR

    _, limit = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.use_cls": False,  # would turn lines around that are not upside down
            "Rec.rec_batch_num": 1,  # larger batches would pad lines of different lengths
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


def read_image(path: Path) -> Document:
    """Read the text of an image, with a block for each page of a TIFF. Raises `BadDocument` if the
    extra `ocr` is not installed or the image is too large, and `OSError`.
    """
    if not has_ocr():
        raise BadDocument(f"{path}: is an image; {how_to_read()}.")
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # `_pages` checks the size before an image is decoded
    image = Image.open(path, formats=("BMP", "JPEG", "PNG", "TIFF", "WEBP"))
    return Document(title_of(path), _pages(image, path))


def _pages(image: Any, path: Path) -> Iterator[TextBlock | Unread]:
    from PIL import ImageOps

    with image:
        count = image.n_frames if image.format == "TIFF" else 1
        for index in range(min(count, MAX_PAGES)):
            image.seek(index)
            width, height = image.size
            if width * height > _MAX_MEGAPIXELS * 1_000_000:
                raise BadDocument(
                    f"{path}: an image of {width} × {height} pixels has more than "
                    f"{_MAX_MEGAPIXELS} million pixels; make it smaller, or leave it out."
                )
            text = recognised(ImageOps.exif_transpose(image))
            yield TextBlock(text, page=index + 1 if count > 1 else None)
        if count > MAX_PAGES:
            yield Unread(f"pages after the first {MAX_PAGES}")
