"""Questions of any data set."""

import msgspec


class BenchmarkQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """Question with its right answers; encoded, a line of `questions.jsonl` in the plain format."""

    id: str
    question: str
    answers: tuple[str, ...]
    """Right answers, at least one."""
    dataset: str
    split: str
    supporting: tuple[str, ...] = msgspec.field(default=(), name="supporting_doc_ids")
    """Ids of the passages needed for the answer; empty if unknown."""
    type: str = ""
    """Type in the data set, such as `bridge` or `comparison`."""
