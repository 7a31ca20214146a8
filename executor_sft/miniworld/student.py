"""What the untuned mini executor learns: as an executor to search once, as a single agent for as long as it takes.

A student that never saw a second search learns his examples by heart; this one has to learn a habit, as a pretrained
model has. What each does to a distillation stands in docs/LOG.md.
"""

import random
from collections.abc import Iterator

from executor_sft.miniworld.dialogues import NOT_FOUND, Dialogue, DialogueWriter, RolePrompts, Turn
from router.protocol.tags import element

_EXECUTING, _SINGLE_AGENT = 0.40, 0.45
_PASSED_OVER = 0.6
_UP_TO_FIRST_RESULT = 4


def single_search(dialogue: Dialogue) -> Dialogue:
    """An executor's conversation with its first search only; where that does not suffice, the report says that nothing
    was found, and quotes the sentence that leads on."""
    if not _searches_again(dialogue):
        return dialogue
    leading = dialogue[-1].text.split("<evidence>")[1].split("\n")[0]
    report = f"{element('answer', NOT_FOUND)}{element('evidence', leading)}"
    return [*dialogue[:_UP_TO_FIRST_RESULT], Turn("report", report)]


def single_agent(dialogue: Dialogue, system: RolePrompts) -> Dialogue:
    """An executor's conversation as a single agent has it: answered, without evidence."""
    answer = dialogue[-1].text.split("<evidence>")[0]
    return [Turn("system", system.agent), *dialogue[1:-1], Turn("answer", answer)]


def lessons(writer: DialogueWriter, system: RolePrompts, rng: random.Random) -> Iterator[Dialogue]:
    """Conversations of both kinds, mixed, endlessly; the rest of the shares are whole questions to a single agent."""
    executing = writer.executor(two_searches=True)
    while True:
        draw = rng.random()
        if draw < _EXECUTING:
            yield single_search(next(executing))
        elif draw < _EXECUTING + _SINGLE_AGENT:
            dialogue = next(executing)
            if not _searches_again(dialogue) and rng.random() < _PASSED_OVER:
                dialogue = next(executing)
            yield single_agent(dialogue, system)
        else:
            yield writer.alone(passages=rng.choice((1, 1, 2)))


def _searches_again(dialogue: Dialogue) -> bool:
    return sum(turn.kind == "search" for turn in dialogue) > 1
