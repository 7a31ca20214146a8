"""When two questions are the same."""


def normal_question(question: str) -> str:
    """Equal for questions that differ in case, surplus space and closing punctuation alone."""
    return " ".join(question.casefold().split()).rstrip(" ?!.,;:…")
