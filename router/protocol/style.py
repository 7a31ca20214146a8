"""The style of an answer: its language, its length, and the operator's instructions for it."""

from typing import Literal

import msgspec

from router.frozen import Frozen

Length = Literal["short", "sentence", "paragraph"]
MAX_INSTRUCTIONS_CHARS = 4000
MAX_LANGUAGE_CHARS = 50
_LENGTHS: dict[Length, str] = {
    "short": "",
    "sentence": (
        "Instead of the shortest form, write one full sentence between <answer> and </answer>."
    ),
    "paragraph": (
        "Instead of the shortest form, write one paragraph of two to six sentences between "
        "<answer> and </answer>. Every sentence states what the reports state, and nothing else."
    ),
}


class AnswerStyle(Frozen, forbid_unknown_fields=True):
    """The style of an answer. It is used by the answerer alone, not by the search."""

    language: str = ""
    """Language of the answer, such as `German` or `pt-BR`. Empty: the question's language."""
    length: Length = "short"
    """`short`: the name, date or number alone; `sentence`: one full sentence; `paragraph`: two to
    six sentences, each of which must be supported by the evidence.
    """
    instructions: str = ""
    """Text that is added to the answerer's system prompt."""
    max_answer_tokens: int = 0
    """Max tokens of the answerer's output; 0 for the limit of its role."""

    def over(self, other: "AnswerStyle") -> "AnswerStyle":
        """Return this style; fields with the default value are replaced by those of `other`. The
        instructions of both styles are joined, those of `other` first.
        """
        fields = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(DEFAULT_STYLE, name)
        }
        fields["instructions"] = "\n\n".join(filter(None, (other.instructions, self.instructions)))
        return msgspec.structs.replace(other, **fields)

    def problem(self) -> str:
        """Return a description of the first invalid field. The description begins with the field's
        name. Return an empty string if the style is valid.
        """
        limits = {"language": MAX_LANGUAGE_CHARS, "instructions": MAX_INSTRUCTIONS_CHARS}
        for name, limit in limits.items():
            if len(getattr(self, name)) > limit:
                chars = len(getattr(self, name))
                return f"{name} has {chars} characters; the limit is {limit}; shorten it."
        if not self.language.isprintable():
            return "language has control characters; write a language's name, such as German."
        if self.max_answer_tokens < 0:
            tokens = self.max_answer_tokens
            return f"max_answer_tokens is {tokens}; it must be at least 1, or 0 (role's limit)."
        return ""

    def system(self, prompt: str) -> str:
        """Return the system prompt `prompt`, followed by the text that asks the answerer for this
        style.
        """
        language = f"Write the answer in {self.language}." if self.language else ""
        return "\n\n".join(
            filter(None, (prompt, _LENGTHS[self.length], language, self.instructions))
        )


DEFAULT_STYLE = AnswerStyle()
