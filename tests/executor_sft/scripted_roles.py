"""A backbone, an answerer, a teacher and a student that follow rules.

Each film's page lacks its director. The teacher then searches again for the page that has it; the
student reports what it found first. The backbone asks for the director and, with a name, for the
place of birth; the answerer repeats the last report.
"""

import re
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from executor_sft.call_cache import CachedModel, CallCache
from executor_sft.questions import Question
from executor_sft.rollout import RolloutWorker
from router.calls import Role
from router.models import Model, Prompt, Sampling
from router.protocol import Passage, prompts
from router.search import Answerer, Delegator, Executor, FactorizedSearch
from router.search.agent import ExecutorLimits
from router.search.answerer import Judge
from router.trace import RoleName
from tests.router.deployment import STOP, block, lasting, report
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import Answer, ScriptedModel

REQUEST = re.compile(r"<request>(.*?)</request><answer>(.*?)</answer>")


def asks(prompt: Prompt) -> str:
    """Play the backbone: two hops, the second with the name in the first report."""
    question = prompt.messages[1].content
    user_text = prompt.messages[-1].content
    film = question.removeprefix("Where was the director of ").removesuffix(" born?")
    requests = REQUEST.findall(user_text)
    if not requests:
        return block(f"Who directed {film}?")
    (last_request, name) = requests[-1]
    return STOP if last_request.startswith("Where") else block(f"Where was {name} born?")


def answers(prompt: Prompt) -> str:
    """Play the answerer."""
    return f"<answer>{REQUEST.findall(prompt.messages[1].content)[-1][1]}</answer>"


def searches_twice(prompt: Prompt) -> str:
    """Play the teacher: the first search never finds a director; without a second search, it
    guesses.
    """
    sub_query = prompt.messages[1].content
    user_text = prompt.messages[-1].content
    if len(prompt.messages) == 2:
        return f"<search>{sub_query}</search>"
    if sub_query.startswith("Where"):
        return report(f"home of {sub_query.split()[2]}", "It says so.")
    if len(prompt.messages) == 4 and prompts.LAST_SEARCH not in user_text:
        return f"<search>credits of {sub_query[13:-1]}</search>"
    known = len(prompt.messages) == 6
    return report(f"Mann{sub_query[13:-1]}" if known else "Nobody", "The credits say so.")


def searches_once(prompt: Prompt) -> str:
    """Play the student."""
    sub_query = prompt.messages[1].content
    if len(prompt.messages) == 2:
        return f"<search>{sub_query}</search>"
    if sub_query.startswith("Where"):
        return report(f"home of {sub_query.split()[2]}", "It says so.")
    return report("Pacino", "He was there.")


class OnePage:
    """A retriever that finds the same page for every query."""

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        return [[Passage("p", "A page", "It says so.")] for _ in queries]


def questions(count: int) -> list[Question]:
    """Return questions about the birthplace of a film's director."""
    return [
        Question(
            f"q{number}", f"Where was the director of F{number} born?", (f"home of MannF{number}",)
        )
        for number in range(count)
    ]


class ScriptedRoles:
    """Models of the roles, with their prompts."""

    def __init__(
        self,
        *,
        backbone: Callable[[Prompt], Answer] = asks,
        teacher: Callable[[Prompt], Answer] = searches_twice,
        student: Callable[[Prompt], Answer] = searches_once,
        judge: Callable[[Prompt], Answer] | None = None,
    ) -> None:
        self.backbone = ScriptedModel(backbone, "backbone")
        self.answerer = ScriptedModel(answers, "answerer")
        self.teacher = ScriptedModel(teacher, "teacher")
        self.student = ScriptedModel(student, "student")
        self.judge = judge and ScriptedModel(judge, "judge")

    @property
    def models(self) -> list[ScriptedModel]:
        """Return all models."""
        return [
            self.backbone,
            self.answerer,
            self.teacher,
            self.student,
            *([self.judge] if self.judge else []),
        ]

    @property
    def asked(self) -> list[tuple[str, Prompt]]:
        """Return every call without its request id."""
        return [
            (model.name, Prompt(prompt.messages, prompt.sampling, prompt.stop))
            for model in self.models
            for prompt in model.prompts
        ]

    def worker(self, cache: CallCache | None = None) -> RolloutWorker:
        """Return a worker with the models, or with a cache of their replies."""

        def role(name: RoleName, model: Model) -> Role:
            known = CachedModel(model, cache, name) if cache else model
            return Role(name, known, name, Sampling(max_tokens=64), attempts=1, streams=False)

        limits = ExecutorLimits()
        page = OnePage()
        teacher = role("execution", self.teacher)
        search = FactorizedSearch(
            Delegator(role("delegation", self.backbone)),
            Executor(teacher, Unfiltered(page), limits),
            Answerer(role("answer", self.answerer)),
        )
        return RolloutWorker(
            search,
            Executor(role("execution", self.student), Unfiltered(page), limits),
            [Executor(teacher, Unfiltered(page), replace(limits, max_searches=1))] * 2,
            Judge(role("judge", self.judge)) if self.judge else None,
            lasting,
        )
