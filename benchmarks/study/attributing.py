"""Which role lost a wrong answer, by doing the work of one role after another right."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.result_row import Attribution, Loss
from executor_sft.rollouts import check_execution
from router.protocol.evidence import Report
from router.protocol.scoring import normal_answer
from router.search.answerer import Answerer
from router.search.context import RunContext
from router.search.executor import Executor
from router.trace.values import Conversation, Execution


@dataclass(frozen=True, slots=True)
class Attributor:
    """Works with a cell's executor and answerer on gold sub-queries."""

    executor: Executor
    answerer: Answerer
    right: Callable[[BenchmarkQuestion, str], Awaitable[bool]]
    """Whether an answer is."""

    async def attribute(self, question: BenchmarkQuestion, context: RunContext) -> Attribution:
        """Who lost `question`, which was answered wrong and has a gold decomposition. Its steps are asked with what the
        executor itself found before, as a faultless delegator would. Raises `UpstreamError` and `OutOfTime`.
        """
        executed: list[Execution] = []
        for index, step in enumerate(question.decomposition):
            asked = step.filled([execution.report.answer for execution in executed])
            execution = await self.executor.run(asked, index, context)
            check_execution(execution, index, context)
            executed.append(execution)
        found, _ = await self.answerer.answer(question.question, executed, context.ledger)
        told, _ = await self.answerer.answer(question.question, _gold_executions(question), context.ledger)
        if await self.right(question, found):
            return Attribution("delegation", found, told)
        lost_by = lost_in_execution(question, executed) if await self.right(question, told) else "answering"
        return Attribution(lost_by, found, told)


def lost_in_execution(question: BenchmarkQuestion, executed: Sequence[Execution]) -> Loss:
    """By the first report that misses what its gold sub-query asks for: `reading` where a passage that was shown holds
    it, or else `retrieval`. Where none does, what they say was not said clearly enough: `reading` too.
    """
    for step, execution in zip(question.decomposition, executed, strict=True):
        if not holds([execution.report.answer], step.answer):
            shown = [passage for search in execution.searches for passage in search.shown]
            known = step.supporting_doc_id in [passage.document.partition("#")[2] or passage.id for passage in shown]
            texts = [f"{passage.title} {passage.text}" for passage in shown]
            return "reading" if known or holds(texts, step.answer) else "retrieval"
    return "reading"


def holds(texts: Sequence[str], answer: str) -> bool:
    """Whether any text has all words of `answer` in a row, once normalised."""
    wanted = normal_answer(answer)
    return bool(wanted) and any(f" {wanted} " in f" {normal_answer(text)} " for text in texts)


def _gold_executions(question: BenchmarkQuestion) -> list[Execution]:
    """Reports that could not be better; their evidence is the sub-question with its answer."""
    return [
        Execution(asked, Report(step.answer, (f"{asked} {step.answer}",)), "reported", (), Conversation(()))
        for asked, step in zip(question.sub_questions, question.decomposition, strict=True)
    ]
