import pytest

from serving.retrieval.dense import Hit
from serving.retrieval.index import fuse


def test_a_row_scores_the_sum_of_its_reciprocal_ranks() -> None:
    """Second in both rankings beats first in one; the scores of the rankings do not count."""
    fused = fuse([[Hit(1, 0.9), Hit(2, 0.1)], [Hit(3, 50.0), Hit(2, 49.0)]], top_k=3)

    assert [hit.row for hit in fused] == [2, 1, 3]
    assert [hit.score for hit in fused] == pytest.approx([2 / 62, 1 / 61, 1 / 61])


def test_an_empty_ranking_changes_nothing() -> None:
    """Where no word is shared, the dense order stands."""
    assert [hit.row for hit in fuse([[Hit(4, 0.9), Hit(0, 0.8)], []], top_k=1)] == [4]
