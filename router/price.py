"""What a model costs."""

import msgspec

from router.model import Usage

MOST_DOLLARS = 100_000
"""For a million tokens: a hundred times what any model has cost, and little enough for every database to sum."""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """US dollars for a million tokens."""

    prompt: float
    completion: float
    cached: float | None = None
    """Prompt tokens from the provider's cache; absent, they cost what others cost."""

    @property
    def impossible(self) -> list[str]:
        """The fields that no price can have: less than nothing, more than `MOST_DOLLARS`, or no number."""
        return [name for name in self.__struct_fields__ if not 0 <= (getattr(self, name) or 0.0) <= MOST_DOLLARS]

    def cost(self, usage: Usage) -> int:
        """What a call cost, in billionths of a dollar: whole numbers, so that sums are exact."""
        cached = usage.cached_tokens or 0
        per_cached = self.prompt if self.cached is None else self.cached
        dollars_for_a_million = (
            (usage.prompt_tokens - cached) * self.prompt
            + cached * per_cached
            + usage.completion_tokens * self.completion
        )
        return round(dollars_for_a_million * 1000)

    def most(self, prompt_tokens: int, completion_tokens: int) -> int:
        """The most that so many tokens can cost, whatever is cached, in billionths of a dollar."""
        per_prompt = max(self.prompt, self.cached or 0.0)
        return round((prompt_tokens * per_prompt + completion_tokens * self.completion) * 1000)
