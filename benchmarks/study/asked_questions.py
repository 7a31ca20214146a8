"""The questions of a sweep."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import read_entries
from router.protocol.sub_queries import normal_question


def asked_questions(files: Sequence[str], limit: int | None = None) -> list[BenchmarkQuestion]:
    """Of all files, each question once, the first `limit` of each data set; no two have the same id. Raises
    `BadCorpus`, naming file and line.
    """
    seen, ids, of_dataset = set[tuple[str, str]](), Counter[str](), Counter[str]()
    chosen: list[BenchmarkQuestion] = []
    for file in files:
        for entry in read_entries(Path(file)):
            question = entry.question
            same = question.dataset, normal_question(question.question)
            if same in seen:
                continue
            seen.add(same)
            ids[question.id] += 1  # before the limit, so that a higher one gives no question another id
            if limit is not None and of_dataset[question.dataset] >= limit:
                continue
            of_dataset[question.dataset] += 1
            apart = f"{question.id}#{ids[question.id]}" if ids[question.id] > 1 else question.id
            chosen.append(msgspec.structs.replace(question, id=apart))
    return chosen
