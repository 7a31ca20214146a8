"""A report as one Markdown file and one HTML page that needs nothing else."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from benchmarks.study.picture import Picture
from benchmarks.study.report_table import ReportTable

_PAGE = Path(__file__).with_name("page.html")
_PUBLISHED = (
    'From the paper "Think Big, Search Small" (TBSS). Other models, other questions and another corpus: compare '
    "shapes, not numbers."
)


@dataclass(frozen=True, slots=True)
class Report:
    """What both show."""

    title: str
    lead: str
    warning: str
    """Empty for none."""
    tables: Sequence[ReportTable]
    pictures: Sequence[Picture]
    published: Sequence[ReportTable]
    published_pictures: Sequence[Picture]

    def markdown(self) -> str:
        """Pictures lie beside it."""
        ours = [*map(_image, self.pictures), *(table.markdown() for table in self.tables)]
        theirs = [*map(_image, self.published_pictures), *(table.markdown() for table in self.published)]
        head = [f"# {self.title}", self.lead, *([f"**{self.warning}**"] if self.warning else [])]
        return "\n\n".join(
            [*head, "## Our figures", *ours, "## Published figures, for comparison", _PUBLISHED, *theirs]
        )

    def html(self) -> str:
        """Pictures are in it."""
        warning = f'<p class="warning">{html.escape(self.warning)}</p>' if self.warning else ""
        return Template(_PAGE.read_text("utf-8")).substitute(
            title=html.escape(self.title),
            lead=html.escape(self.lead),
            warning=warning,
            ours="\n".join([*map(_inlined, self.pictures), *(table.html() for table in self.tables)]),
            published="\n".join([*map(_inlined, self.published_pictures), *(table.html() for table in self.published)]),
        )


def _image(picture: Picture) -> str:
    return f"![{picture.caption}]({picture.path.name})\n\n*{picture.caption}*"


def _inlined(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode()
    caption = html.escape(picture.caption)
    image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
    return f"<figure><figcaption>{caption}</figcaption>{image}</figure>"
