"""A turn of a model that searches and answers by itself, read from its output: one search, or the answer.

Reading is total: any text gives a turn, none raises, and the time is linear in the text.
"""

from dataclasses import dataclass

from router.execution_turn import Search
from router.malformed import Malformed
from router.markup import blocks, one_line
from router.search_block import own_text, search_blocks

__all__ = ["AgentTurn", "Answered", "Malformed", "parse_agent_turn"]


@dataclass(frozen=True, slots=True)
class Answered:
    """The turn is the last one."""

    answer: str


AgentTurn = Search | Answered | Malformed


def parse_agent_turn(text: str, *, cut: bool = False) -> AgentTurn:
    """What the model wrote; `cut`: the length limit ended `text`.

    Of a search and an answer in one turn, the one that comes first counts, provided that it is complete.
    """
    own, cut = own_text(text, cut=cut)
    found = search_blocks(own, cut=cut)
    searches = [block for block in found if block.questions]
    answers = [block for block in blocks(own, "answer") if block.closed or not cut]
    first = next((block for block in answers if one_line(block.body)), None)
    if searches and not (first and first.closed and first.start < searches[0].start):
        return Search(searches[0].questions[0], sum(len(block.questions) for block in searches) - 1)
    if first:
        return Answered(one_line(first.body))
    if found:
        return Malformed("no complete query in the search block")
    return Malformed("the answer is empty" if answers else "neither a search block nor an answer")
