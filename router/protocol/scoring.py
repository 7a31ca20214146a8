"""Exact match and token F1, as in the official SQuAD and HotpotQA scripts."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

from router.folding import fold, is_east_asian, sought

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
CLOSED = ("yes", "no", "noanswer")
"""Answers (in normal form) that occur in almost any text, so that finding them in a text proves
nothing.
"""


def normal_answer(text: str) -> str:
    """Return the normal form of an answer, as the scoring programs of the data sets compute it: in
    lower case, without ASCII punctuation, English articles and surplus space.

    Those programs are made for English only. Here, text of a language that is written without
    spaces, such as Chinese, is folded, so that each of its characters counts as a word.
    """
    if is_east_asian(text):
        return fold(text).strip()
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Return whether `answer` equals one of the right answers `golds` after normalisation."""
    return normal_answer(answer) in {normal_answer(gold) for gold in golds}


def token_f1(answer: str, golds: Sequence[str]) -> float:
    """Return the highest token F1 of `answer` against one of the right answers `golds`, from 0 to
    1. As in HotpotQA, the answers "yes", "no" and "noanswer" score 0 unless they match exactly.
    """
    return max((_f1(normal_answer(answer), normal_answer(gold)) for gold in golds), default=0.0)


def holds(texts: Iterable[str], answer: str) -> bool:
    """Return whether one of `texts` contains the words of `answer` in sequence after folding, or
    matches `answer` exactly after normalisation.
    """
    wanted = sought(answer)
    normal = normal_answer(answer)
    return any(
        (wanted and wanted in fold(text)) or (normal and normal == normal_answer(text))
        for text in texts
    )


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in CLOSED or gold in CLOSED):
        return 0.0
    common = sum((Counter(answer.split()) & Counter(gold.split())).values())
    if common == 0:
        return 0.0
    precision = common / len(answer.split())
    recall = common / len(gold.split())
    return 2 * precision * recall / (precision + recall)
