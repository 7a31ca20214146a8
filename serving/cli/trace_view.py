"""A run's trace, for a terminal: what was asked, searched and reported, and what each model read and wrote."""

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from router.trace import Conversation, Execution, Run, Trajectory


def show_trace(console: Console, run: Run, *, prompts: bool) -> None:
    """Print sub-queries, searches and reports by round; `prompts`: also what each model read and wrote."""
    match run.result:
        case Trajectory() as found:
            first = 1
            for number, count in enumerate(found.rounds):
                _line(console, f"round {number + 1}")
                for index, execution in enumerate(found.block(number), first):
                    _show_execution(console, execution, index, prompts=prompts)
                first += count
            for role, conversation in (("delegation", found.delegation), ("answer", found.answering)):
                if prompts and conversation:
                    _line(console, role)
                    _show_conversation(console, conversation, 2)
        case Execution() as execution:
            _show_execution(console, execution, 1, prompts=prompts)
        case Conversation() as conversation if prompts:
            _show_conversation(console, conversation, 0)


def _show_execution(console: Console, execution: Execution, number: int, *, prompts: bool) -> None:
    report = execution.report
    said = execution.outcome.replace("_", " ") if execution.failed else report.answer
    _line(console, f"{number}. {execution.sub_query} → {said}", 2, "bold")
    for search in execution.searches:
        titles = ", ".join(passage.title for passage in search.shown)
        _line(console, f"searched “{search.query}”: {titles or 'nothing found'}", 5)
    for point, citations in zip(report.evidence, execution.citations(report.evidence), strict=True):
        places = ", ".join(citation.passage_id for citation in citations)
        _line(console, f"“{point}” ({places or 'in no passage'})", 5, "cyan")
    if prompts:
        _show_conversation(console, execution.conversation, 5)


def _show_conversation(console: Console, conversation: Conversation, indent: int) -> None:
    for message in conversation.messages:
        _line(console, f"[{message.role}] {message.content}", indent, "dim")
    for output in conversation.outputs[-1:]:  # the earlier ones stand among the messages
        _line(console, f"[assistant] {output.text}", indent, "dim")


def _line(console: Console, text: str, indent: int = 0, style: str = "") -> None:
    console.print(Padding(Text(text, style), (0, 0, 0, indent), expand=False))
