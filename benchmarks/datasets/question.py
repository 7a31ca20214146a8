"""The plain format, to which questions of all data sets are converted."""

import msgspec

from router.frozen import Frozen


class BenchmarkQuestion(Frozen, omit_defaults=True):
    """A question with its right answers. Encoded as JSON, it is a line of `questions.jsonl`."""

    id: str
    question: str
    answers: tuple[str, ...]
    """Right answers, at least one. An answer is right if it matches any of them."""
    dataset: str
    """Name of the data set."""
    split: str
    """`train`, `dev` or `test`."""
    supporting: tuple[str, ...] = msgspec.field(default=(), name="supporting_doc_ids")
    """Ids of the passages that are needed for the answer; empty if unknown."""
    type: str = ""
    """Type of the question in its data set, such as `bridge` or `comparison`."""
