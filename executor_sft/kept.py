"""Trajectories that the filter let through."""

from typing import Literal

import msgspec

from router.trace.values import Execution

Stratum = Literal["student_single", "teacher_single", "teacher_multi", "student_multi"]
"""Correct with one search, the student's or the teacher's (A); the teacher's with more, all of them needed (B). The
last one is there only where nothing was filtered.
"""


class Kept(msgspec.Struct, frozen=True):
    """One line of `kept.jsonl`."""

    stratum: Stratum
    question_id: str
    source: str
    """The data set that the question is from."""
    execution: Execution
