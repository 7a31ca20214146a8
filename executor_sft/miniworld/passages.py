"""Pages of a world. Each page is a passage of a few sentences. For each fact, the library records
the page and the sentence that state it.
"""

import random
from dataclasses import dataclass

from executor_sft.miniworld.relations import (
    ALIAS,
    ALIAS_USE,
    BY_SUBJECT,
    CHRONICLE,
    FILLER,
    REDIRECT,
    Relation,
)
from executor_sft.miniworld.world import Entity, Fact, World
from router.protocol import Passage

_FAMILY = ("father", "mother", "spouse")


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence, and the passage that contains it."""

    passage_id: str
    sentence: str


class Library:
    """All passages of a world, in a fixed order. Records the sentences that state facts, the
    sentences that name another page for a fact, and the sentences that explain aliases.
    """

    def __init__(self, world: World, prefix: str = "mini", edition: str = "") -> None:
        """Write the passages of a world. `prefix`: beginning of the passages' ids; worlds in the
        same index need different prefixes. `edition`: any text; editions have the same facts
        in other wordings.
        """
        self._prefix = prefix
        self._rng = random.Random(f"{world.seed}/{world.side}/passages{edition}")
        self._world = world
        self.passages = list[Passage]()
        self.by_id = dict[str, Passage]()
        self.of_entity = dict[str, list[str]]()
        """Ids of each entity's own pages, by the entity's mention."""
        self.states = dict[tuple[str, str], Statement]()
        """The sentence that states the value of each fact, on the subject's own page or in a
        chronicle. Keys are (mention of the subject, name of the relation).
        """
        self.points = dict[tuple[str, str], Statement]()
        """Facts that the subject's own page does not state: the sentence on that page that leads to
        the value. Keys as in `states`.
        """
        self.aliases = dict[str, Statement]()
        """The sentence that explains each alias, by the alias."""
        for entity in world.entities:
            self._write_entity(entity)

    def _write_entity(self, entity: Entity) -> None:
        relations = [
            relation for relation in BY_SUBJECT[entity.kind] if relation.name in entity.values
        ]
        family = [relation for relation in relations if relation.name in _FAMILY]
        own = [relation for relation in relations if relation.name not in _FAMILY]
        title = f"{entity.name} ({entity.occupation})" if entity.occupation else entity.name
        self._write_page(entity, title, own)
        if family:
            self._write_page(entity, f"Family of {title}", family)
        if entity.alias:
            sentence = self._rng.choice(ALIAS[entity.kind]).format(a=entity.alias, x=entity.mention)
            use = ALIAS_USE[entity.kind].format(a=entity.alias)
            self.aliases[entity.alias] = Statement(
                self.add(entity.alias, [sentence, use]), _capital(sentence)
            )

    def _write_page(self, entity: Entity, title: str, relations: list[Relation]) -> None:
        facts = [self._world.facts[entity.mention, relation.name] for relation in relations]
        self._rng.shuffle(facts)
        sentences = [self._sentence(fact) for fact in facts]
        identity = self.add(title, sentences)
        self.of_entity.setdefault(entity.mention, []).append(identity)
        for fact, sentence in zip(facts, sentences, strict=True):
            key = (entity.mention, fact.relation.name)
            statements = self.states if fact.detour is None else self.points
            statements[key] = Statement(identity, _capital(sentence))
            if fact.detour == "redirect":
                self.states[key] = self._write_chronicle(fact)

    def _write_chronicle(self, fact: Fact) -> Statement:
        sentence = fact.relation.anonymous.format(y=fact.value)
        return Statement(
            self.add(f"{fact.via} Chronicle", [CHRONICLE.format(c=fact.via), sentence]),
            _capital(sentence),
        )

    def _sentence(self, fact: Fact) -> str:
        subject = fact.subject.mention
        if fact.detour == "redirect":
            return self._rng.choice(REDIRECT).format(
                noun=fact.relation.noun.format(x=subject), c=fact.via
            )
        if fact.detour == "shared":
            return fact.relation.shared.format(x=subject, z=fact.via)
        return self._rng.choice(fact.relation.statements).format(x=subject, y=fact.value)

    def add(self, title: str, sentences: list[str]) -> str:
        """Write a passage of these sentences, with up to two filler sentences among them. Return
        the passage's id.
        """
        shown = [_capital(sentence) for sentence in sentences]
        for _ in range(self._rng.choice((0, 1, 1, 2) if len(shown) < 3 else (0, 0, 1))):
            shown.insert(self._rng.randint(1, len(shown)), self._rng.choice(FILLER))
        identity = f"{self._prefix}-{len(self.passages):05d}"
        self.by_id[identity] = Passage(identity, title, " ".join(shown))
        self.passages.append(self.by_id[identity])
        return identity


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
