"""Three layers of doubles: a delegator, managers, and workers that look up numbered facts on
pages, some of them blocked.
"""

import asyncio
import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from router.models import Prompt
from router.protocol import Passage, parse_turn
from router.search import Answerer, Delegator, Executor, FactorizedSearch
from router.search.agent import ExecutorLimits
from router.search.delegator import HOST_STOP
from router.search.managers import Manager, Managers
from tests.router.deployment import STOP, block, report, role
from tests.scripted_model import Answer, ScriptedModel

QUESTION = "What are facts 0 to 7?"
STEPS = "Look up facts 0 1 2 3.", "Look up facts 4 5 6 7."
FACTS = [f"What is fact {number}?" for number in range(8)]
BLOCKED = "This page is blocked."
FILLER = "Much else is said on this page, and none of it is of any use to any reader. " * 15


class Pages:
    """A page for each fact. The pages of some facts show only that they are blocked."""

    def __init__(self, blocked: Sequence[int] = ()) -> None:
        self.blocked = blocked

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        await asyncio.sleep(0)
        return [
            [self._page(int(number[0]))] if (number := re.findall(r"\d+", query)) else []
            for query in queries
        ]

    def _page(self, number: int) -> Passage:
        text = BLOCKED if number in self.blocked else f"Fact {number} is value-{number}. {FILLER}"
        return Passage(f"page-{number}", f"Page {number}", text, document=f"https://mini/{number}")


def leads(prompt: Prompt) -> Answer:
    """Play the delegator of three layers: two steps, the second for a named manager."""
    if "<search_results>" in prompt.messages[-1].content:
        return STOP
    return f'<search>["{STEPS[0]}"]</search><search manager="search">["{STEPS[1]}"]</search>'


def leads_alone(prompt: Prompt) -> Answer:
    """Play the delegator of two layers on the same question."""
    return STOP if "<search_results>" in prompt.messages[-1].content else block(*FACTS)


def manages(prompt: Prompt) -> Answer:
    """Play a manager: ask for each fact of its step, ask once more for the missing ones, and
    report.
    """
    step = prompt.messages[1].content
    last = prompt.messages[-1].content
    if len(prompt.messages) == 2:
        return block(*(f"What is fact {number}?" for number in re.findall(r"\d+", step)))
    missing = re.findall(r"fact (\d+)\?</request><answer>no evidence", last)
    if missing and len(prompt.messages) == 4:
        return block(*(f"Which value has fact {number}?" for number in missing))
    shown = "".join(message.content for message in prompt.messages[2:])
    values = sorted(set(re.findall(r"value-\d+", shown)))
    return report("; ".join(values), f"{', '.join(values)}, as workers say") if values else STOP


def works(prompt: Prompt) -> Answer:
    """Play a worker: search for its sub-query unchanged, and name a manager if the page is
    blocked.
    """
    if len(prompt.messages) == 2:
        return f"<search>{prompt.messages[1].content}</search>"
    shown = html.unescape(prompt.messages[-1].content)
    if BLOCKED in shown:
        return '<escalate to="browser">the page is blocked</escalate>'
    value = re.search(r"value-\d+", shown)
    return report(value[0], f"It is {value[0]}") if value else report("none", "none")


def answers(prompt: Prompt) -> Answer:
    """Play the answerer: answer with all values in the reports."""
    values = sorted(set(re.findall(r"value-\d+", prompt.messages[-1].content)))
    return f"<answer>{' '.join(values)}</answer>"


@dataclass
class Layers:
    """All models of three layers, each of which can be replaced."""

    delegator: Any = field(default_factory=lambda: ScriptedModel(leads, "backbone"))
    managers: Mapping[str, Any] = field(
        default_factory=lambda: {
            name: ScriptedModel(manages, "manager") for name in ("search", "browser")
        }
    )
    workers: Mapping[str, Any] = field(
        default_factory=lambda: {
            name: ScriptedModel(works, "small") for name in ("search", "browser")
        }
    )
    answerer: Any = field(default_factory=lambda: ScriptedModel(answers, "fixed"))
    pages: Mapping[str, Any] = field(
        default_factory=lambda: {"search": Pages(), "browser": Pages()}
    )
    max_rounds: int = 2
    max_workers: int = 8
    parse: Callable[..., Any] = parse_turn

    def of(self) -> Managers:
        """Return the managers."""
        return Managers([self.manager(name) for name in self.managers])

    def manager(self, name: str) -> Manager:
        lead = Delegator(
            replace(role("delegation", self.managers[name]), system=f"manage {name}"),
            report=self.parse,
        )
        workers = Executor(
            role("execution", self.workers[name]), self.pages[name], ExecutorLimits()
        )
        return Manager(name, lead, workers, self.max_rounds, self.max_workers)

    def roles(self) -> dict[str, Any]:
        """Return the roles at both ends and those of managers."""
        managers = {f"managers.{name}": self.manager(name).delegator.role for name in self.managers}
        return {
            "delegation": role("delegation", self.delegator),
            "answer": role("answer", self.answerer),
            **managers,
        }

    def search(self, **settings: Any) -> FactorizedSearch:
        """Return the search of three layers."""
        lead = self.roles()["delegation"]
        writer = Answerer(self.roles()["answer"])
        return FactorizedSearch(
            Delegator(lead, stop=HOST_STOP, managed=True),
            self.of(),
            writer,
            topology="host",
            **settings,
        )
