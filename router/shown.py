"""What an executor is shown: a conversation whose passages give way where it outgrows the model's context."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from router import prompts
from router.execution import SearchRecord
from router.model import Completion, Message
from router.passage import Passage

_TOKENS_PER_CHARACTER = 1 / 3
"""More than in most text, until the engine has counted."""


class Shown:
    """The conversation of one executor, and what its searches found."""

    def __init__(
        self,
        opening: tuple[Message, ...],
        documents: Callable[[Sequence[Passage], bool], str] = prompts.documents,
        said: Callable[[str], str] = prompts.said,
    ) -> None:
        """`documents`: how a search's passages are told, and that it was the last one. `said`: how a turn is shown
        again.
        """
        self.messages, self._render, self._said = opening, documents, said
        self.searches: list[SearchRecord] = []
        self._documents: list[tuple[int, bool]] = []
        """For each search, where its message stands, and whether it asks for the report."""
        self._rate = _TOKENS_PER_CHARACTER

    def absorb(self, output: Completion) -> None:
        """Add the model's turn, and learn from its usage how long the tokens are."""
        if output.usage is not None:
            self._rate = output.usage.prompt_tokens / max(1, self._characters)
        self.messages += (Message("assistant", self._said(output.text)),)

    def tell(self, text: str) -> None:
        """Add a user's turn."""
        self.messages += (Message("user", text),)

    def documents(self, search: SearchRecord, *, last: bool) -> None:
        """Add what a search found; `last` asks for the report outright."""
        self._documents.append((len(self.messages), last))
        self.searches.append(search)
        self.tell(self._render(search.passages, last))

    def fit(self, context_tokens: int, max_tokens: int) -> None:
        """Drop passages until, by estimate, `max_tokens` of `context_tokens` are free to write in, or none is left."""
        while self._characters * self._rate + max_tokens > context_tokens and self.drop():
            pass

    def drop(self) -> bool:
        """Drop the lowest-ranked passage of the latest search that shows any; False where none does."""
        for number, search in reversed(list(enumerate(self.searches))):
            if search.shown:
                self.searches[number] = replace(search, dropped_passages=search.dropped_passages + 1)
                self._render_again(number)
                return True
        return False

    def close(self, text: str) -> None:
        """Ask for the end outright, in the user's last turn or in another one: with `text`, or as documents do."""
        last = self.messages[-1]
        if self._documents and self._documents[-1][0] == len(self.messages) - 1:
            self._documents[-1] = (len(self.messages) - 1, True)
            self._render_again(-1)
        elif last.role == "user" and text not in last.content:
            self.messages = (*self.messages[:-1], Message("user", f"{last.content}\n{text}"))
        elif last.role == "assistant":
            self.tell(text)

    def _render_again(self, number: int) -> None:
        at, last = self._documents[number]
        message = Message("user", self._render(self.searches[number].shown, last))
        self.messages = (*self.messages[:at], message, *self.messages[at + 1 :])

    @property
    def _characters(self) -> int:
        return sum(len(message.content) for message in self.messages)
