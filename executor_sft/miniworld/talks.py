"""Conversations of two and three questions about one mini world. Their follow-up questions can be
understood only with the questions before them.

A follow-up repeats the previous question for another thing ("What about Krurou?"), asks something
else about the same thing ("When was its author born?"), or asks something about the answer ("Where
was she born?"). Some questions can be understood alone. Others cannot be resolved, because "he"
refers to nobody in the conversation, or to either of two people. The right reply is then to ask the
user who is meant.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from executor_sft.miniworld.dialogues import Dialogue, DialogueTurn, DialogueWriter, RolePrompts
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, MiniQuestion
from executor_sft.miniworld.relations import BY_SUBJECT, Kind, Relation
from executor_sft.miniworld.world import Entity, World
from router.models import Message
from router.protocol import prompts
from router.protocol.tags import element

WORDS = "he she his her him it its what about and who whom do you mean by".split()
"""Words that occur only in follow-up questions."""
_ABOUT = ("What about {}?", "And {}?", "And what about {}?")
_SIMPLE_SHARE = 0.3
"""Probability that the next lesson is about a question with one hop, instead of a follow-up
question. The backbone's other training data have no questions with one hop.
"""
_MAX_TRIES = 50


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation and its last question."""

    history: tuple[Message, ...]
    asked: str
    """The last question in the user's words."""
    question: MiniQuestion | None
    """The last question, rewritten so that it is understood alone; None if it cannot be resolved.
    """
    asked_back: str = ""
    """Reply to a last question that cannot be resolved: it asks the user who is meant. Empty for
    any other question.
    """


@dataclass(frozen=True, slots=True)
class _Topic:
    """The subject of a conversation's last question."""

    start: Entity
    relations: tuple[Relation, ...]
    wording: str
    question: MiniQuestion

    @property
    def answer(self) -> "Entity | None":
        """The entity that is the answer; None if the answer is a year."""
        value: Entity | str | None = self.start
        for relation in self.relations:
            value = value.values.get(relation.name) if isinstance(value, Entity) else None
        return value if isinstance(value, Entity) else None


class Talks:
    """Draws conversations about one world, endlessly. Two objects for the same world draw the same
    conversations.
    """

    def __init__(self, world: World, library: Library | None = None) -> None:
        self._examiner = Examiner(world, library or Library(world))
        self._rng = random.Random(f"{world.seed}/{world.side}/talks")
        self._by_kind = dict[Kind, list[Entity]]()
        for entity in world.entities:
            self._by_kind.setdefault(entity.kind, []).append(entity)

    def draw(self) -> Talk:
        """Return the next conversation. One in three has three questions, all others have two."""
        topic = self._topic()
        history = list(_exchange(topic.question.text, topic.question))
        if self._rng.random() < 1 / 3:
            asked, topic = self._follow_up(topic)
            history += _exchange(asked, topic.question)
        if self._rng.random() < 0.12:
            return self._unresolved(topic, history)
        asked, topic = self._follow_up(topic)
        return Talk(tuple(history), asked, topic.question)

    def simple(self) -> MiniQuestion:
        """Return a question of one hop."""
        return self._topic(hops=1).question

    def _topic(
        self,
        start: Entity | None = None,
        relations: tuple[Relation, ...] = (),
        wording: str = "",
        hops: int = 0,
    ) -> _Topic:
        """Return a topic whose question has an answer. Parameters that are not given are chosen at
        random. Raises `LookupError` if no such question is found.
        """
        for _ in range(_MAX_TRIES):
            entity = start or self._rng.choice(self._by_kind[self._rng.choice(list(self._by_kind))])
            steps = relations or self._chain(entity, hops or self._rng.choice((1, 2, 2, 3)))
            if not steps:
                continue
            words = wording or self._rng.choice(steps[-1].ask)
            question = self._examiner.chain(entity, steps, words, by_alias=False)
            if question:
                return _Topic(entity, steps, words, question)
        raise LookupError("no such question has an answer")

    def _chain(self, start: Entity, hops: int) -> tuple[Relation, ...]:
        """Return a random chain of relations from the entity `start` to a value, with at most
        `hops` relations.
        """
        steps = list[Relation]()
        entity: Entity | str = start
        while isinstance(entity, Entity) and len(steps) < hops:
            known = [step for step in BY_SUBJECT[entity.kind] if step.name in entity.values]
            if len(steps) < hops - 1:
                known = [step for step in known if step.value != "year"]
            if not known:
                break
            steps.append(self._rng.choice(known))
            entity = entity.values[steps[-1].name]
        return tuple(steps)

    def _follow_up(self, before: _Topic) -> tuple[str, _Topic]:
        """Return a follow-up question in the user's words, and its topic."""
        while True:
            kind = self._rng.choice(("other", "other", "same", "same", "swap", "answer", "new"))
            try:
                match kind:
                    case "other":
                        other = self._rng.choice(self._by_kind[before.start.kind])
                        topic = self._topic(other, before.relations, before.wording)
                        asked = self._rng.choice(_ABOUT).format(other.mention)
                    case "same" if _class_of(before.start) != _class_of(before.answer):
                        topic = self._topic(before.start)
                        asked = self._with_pronoun(topic)
                    case "answer" if before.answer and _class_of(before.start) != _class_of(
                        before.answer
                    ):
                        topic = self._topic(before.answer)
                        asked = self._with_pronoun(topic)
                    case "swap" if len(before.relations) > 1:
                        topic = self._swapped(before)
                        noun = _possessive(topic.relations[0], self._pronoun(before.start)[1])
                        asked = self._rng.choice(_ABOUT).format(noun)
                    case "new":
                        topic = self._topic()
                        asked = topic.question.text
                    case _:
                        continue
            except LookupError:
                continue
            if topic.question.text != before.question.text:
                return asked, topic

    def _swapped(self, before: _Topic) -> _Topic:
        """Return a copy of `before` with another first relation, which leads to the same kind of
        thing. Raises `LookupError` if there is no such relation, or no such question with an
        answer.
        """
        first, *rest = before.relations
        others = [
            relation
            for relation in BY_SUBJECT[first.subject]
            if relation.value == first.value and relation != first
        ]
        if not others:
            raise LookupError
        return self._topic(before.start, (self._rng.choice(others), *rest), before.wording)

    def _with_pronoun(self, topic: _Topic) -> str:
        """Return a topic's question with a pronoun in place of the name."""
        subject, possessive, other = self._pronoun(topic.start)
        first, *rest = topic.relations
        if rest:
            named = _possessive(first, possessive)
            for relation in rest[:-1]:
                named = relation.noun.format(x=named)
            return topic.wording.format(x=named)
        noun = f"{first.noun}"
        if noun in topic.wording:
            return topic.wording.replace(noun, _possessive(first, possessive))
        after = topic.wording.partition("{x}")[0].split()[-1:]
        return topic.wording.format(x=other if after in (["to"], ["by"], ["of"]) else subject)

    def _pronoun(self, entity: Entity) -> tuple[str, str, str]:
        if entity.kind != "person":
            return "it", "its", "it"
        return self._rng.choice((("he", "his", "him"), ("she", "her", "her")))

    def _unresolved(self, before: _Topic, history: list[Message]) -> Talk:
        """Return a conversation whose last question cannot be resolved. Its pronoun refers to
        nothing in the conversation, or to either of two people.
        """
        if before.start.kind == "person" and before.answer and before.answer.kind == "person":
            topic = self._topic(self._rng.choice(self._by_kind["person"]))
            asked = self._with_pronoun(topic)
            names = f": {before.start.mention} or {before.answer.mention}"
            return Talk(tuple(history), asked, None, f"Whom do you mean{names}?")
        while before.start.kind == "person" or (before.answer and before.answer.kind == "person"):
            before = self._topic()
        history = list(_exchange(before.question.text, before.question))
        topic = self._topic(self._rng.choice(self._by_kind["person"]))
        return Talk(tuple(history), self._with_pronoun(topic), None, "Whom do you mean?")


def talk_lessons(writer: DialogueWriter, talks: Talks, system: RolePrompts) -> Iterator[Dialogue]:
    """Yield conversations endlessly: of the condenser (the role that rewrites follow-up questions),
    and of delegator and answerer about simple questions.
    """
    rng = random.Random(0)
    while True:
        if rng.random() < _SIMPLE_SHARE:
            question = talks.simple()
            yield writer.delegation(question)
            yield writer.answering(question)
            continue
        yield condensing(talks.draw(), system)


def condensing(talk: Talk, system: RolePrompts) -> Dialogue:
    """Return the condenser's conversation about the last question of a talk."""
    if talk.question:
        written = element("question", talk.question.text)
    else:
        written = element("clarify", talk.asked_back)
    return [
        DialogueTurn("system", system.condense),
        DialogueTurn("user", prompts.condense_request(talk.history, talk.asked)),
        DialogueTurn("condense", written),
    ]


def _exchange(asked: str, question: MiniQuestion) -> tuple[Message, Message]:
    return Message("user", asked), Message("assistant", question.answer)


def _class_of(entity: Entity | None) -> str:
    """Return the class of pronouns for an entity, `person` or `thing`; empty for None."""
    if entity is None:
        return ""
    return "person" if entity.kind == "person" else "thing"


def _possessive(relation: Relation, pronoun: str) -> str:
    """Return a relation's noun phrase with a possessive pronoun, such as `its author`."""
    return f"{pronoun} {relation.noun.removeprefix('the ').removesuffix(' of {x}')}"
