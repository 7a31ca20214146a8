"""Tokens that one question takes: in a typical case, and at most, by the config's budgets."""

from collections.abc import Mapping
from functools import partial

import msgspec

from router.trace import Price, RoleName
from serving.config.config import Config

TYPICAL = (
    "Typical: two rounds of two sub-queries and a stop, one search each, reports of 60 "
    "tokens, turns as long as the "
    "probe's. At most: all rounds, sub-queries, turns and max_tokens used up, every "
    "decision corrected; no retries. "
    "What counts no tokens is taken at 4 characters a token."
)
_QUESTION = 30
_SUB_QUERY_TOKENS = 20
_REPORT = 60


class Measured(msgspec.Struct, frozen=True):
    """A role's tokens, as its probe shows them."""

    system_chars: int
    chars_a_token: float = 4.0
    written: int = _REPORT
    """Tokens of its turn, thinking included."""


class Use(msgspec.Struct, frozen=True):
    """Tokens of one role over one question."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    longest: int
    """Tokens of the longest call: its prompt and its max output."""

    def cost(self, price: Price) -> float:
        """Return the cost in dollars, without a cache."""
        return (self.prompt_tokens * price.prompt + self.completion_tokens * price.completion) / 1e6


def estimate(
    config: Config, measured: Mapping[RoleName, Measured]
) -> dict[RoleName, tuple[Use, Use]]:
    """Return each role's use, typical and at most."""
    search = config.search
    allowed = {name: role.max_tokens for name, role in config.roles.by_name.items()}
    written = {name: min(measured[name].written, tokens) for name, tokens in allowed.items()}
    written["execution"] = min(max(written["execution"], _REPORT), allowed["execution"])
    system = {
        name: int(measured[name].system_chars / measured[name].chars_a_token) for name in allowed
    }
    prompts = partial(_prompts, system, search.top_k * config.retrieval.chunk_tokens)
    typical = prompts(
        rounds=min(2, search.max_rounds),
        decisions=min(3, search.max_rounds),
        tries=1,
        fan=min(2, search.max_sub_queries),
        turns=2,
        searches=1,
        question=_QUESTION,
        sub_query_tokens=_SUB_QUERY_TOKENS,
        report=_REPORT,
        written=written,
    )
    most = prompts(
        rounds=search.max_rounds,
        decisions=search.max_rounds,
        tries=2,
        fan=search.max_sub_queries,
        turns=search.max_turns,
        searches=min(search.max_searches, search.max_turns - 1),
        question=int(config.server.max_question_chars / measured["delegation"].chars_a_token),
        sub_query_tokens=-(-allowed["delegation"] // search.max_sub_queries),
        report=allowed["execution"],
        written=allowed,
    )
    return {
        name: (
            _use(typical[name], written[name], most_written),
            _use(most[name], most_written, most_written),
        )
        for name, most_written in allowed.items()
    }


def _use(prompts: list[int], written: int, allowed: int) -> Use:
    return Use(len(prompts), sum(prompts), len(prompts) * written, max(prompts) + allowed)


def _prompts(
    system: Mapping[RoleName, int],
    passages: int,
    *,
    rounds: int,
    decisions: int,
    tries: int,
    fan: int,
    turns: int,
    searches: int,
    question: int,
    sub_query_tokens: int,
    report: int,
    written: Mapping[RoleName, int],
) -> dict[RoleName, list[int]]:
    """The size of every call's prompt, in tokens; each turn sees those before it. `tries`: calls of
    one decision. `fan`: sub-queries of a round. `passages`, and from `question` on: sizes.
    """
    results = fan * (sub_query_tokens + report)
    turn = written["delegation"]
    round_ = tries * written["delegation"] + results
    first = system["delegation"] + question
    asked = system["execution"] + sub_query_tokens
    executor = [
        asked + number * written["execution"] + min(number, searches) * passages
        for number in range(turns)
    ]
    return {
        "delegation": [
            first + number * round_ + tried * turn
            for number in range(decisions)
            for tried in range(tries)
        ],
        "execution": executor * (rounds * fan),
        "answer": [system["answer"] + question + rounds * results],
    }
