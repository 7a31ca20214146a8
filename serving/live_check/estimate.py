"""Estimate the calls and tokens of one question: for a typical question, and for a question that
uses up all limits in the config.
"""

import math
from collections.abc import Mapping
from functools import partial

import msgspec

from router.frozen import Frozen
from router.trace import Price, RoleName
from serving.config.config import Config, SearchConfig

TYPICAL = (
    "Typical: two rounds of two sub-queries, then the decision to stop; one search per sub-query, "
    "reports of 60 tokens, and outputs as long as in the probe. At most: the run uses all rounds, "
    "sub-queries, turns and max_tokens, and asks the delegator to correct each decision once; "
    "retries of calls are not counted. If an endpoint reports no token counts, 4 characters count "
    "as one token. The prompts for tables are not probed; to try them, ask for a small table."
)
"""Explanation of the estimate, which is printed below the table of costs."""
_QUESTION = 30
_SUB_QUERY_TOKENS = 20
_REPORT = 60


class Measured(Frozen):
    """Measurements of a role's model during the probe (a few small requests). The estimate is based
    on them.
    """

    system_chars: int
    """Characters of the role's system prompt."""
    chars_a_token: float = 4.0
    """Mean number of characters per token in a prompt."""
    written: int = _REPORT
    """Tokens of the model's output during the probe, including thinking."""


class Use(Frozen):
    """Calls and tokens that one role takes for one question."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    longest: int
    """Context length in tokens that the calls need: the tokens of the longest prompt plus the max
    tokens of an output.
    """

    def cost(self, price: Price) -> float:
        """Return the cost in dollars, as if no prompt tokens were cached."""
        return (self.prompt_tokens * price.prompt + self.completion_tokens * price.completion) / 1e6


def estimate(
    config: Config, measured: Mapping[RoleName, Measured]
) -> dict[RoleName, tuple[Use, Use]]:
    """Return the calls and tokens of each role for one question, as a pair: for a typical question,
    and the maximum. `measured`: measurements of each role's model during the probe.
    """
    search = config.search
    allowed = {name: role.max_tokens for name, role in config.roles.by_name.items()}
    written = {name: min(measured[name].written, tokens) for name, tokens in allowed.items()}
    written["execution"] = min(max(written["execution"], _REPORT), allowed["execution"])
    system = {
        name: int(measured[name].system_chars / measured[name].chars_a_token) for name in allowed
    }
    prompts = partial(_prompts, passages=search.top_k * config.retrieval.chunk_tokens)
    usual = msgspec.structs.replace(
        search,
        max_rounds=min(2, search.max_rounds),
        max_sub_queries=min(2, search.max_sub_queries),
        max_turns=2,
        max_searches=1,
    )
    typical = prompts(
        usual,
        system,
        written,
        question=_QUESTION,
        sub_query_tokens=_SUB_QUERY_TOKENS,
        tries=1,
    )
    upper = prompts(
        search,
        system,
        allowed,
        question=int(config.server.max_question_chars / measured["delegation"].chars_a_token),
        sub_query_tokens=math.ceil(allowed["delegation"] / search.max_sub_queries),
        tries=2,
    )
    return {
        name: (
            _use(typical[name], written[name], most_written),
            _use(upper[name], most_written, most_written),
        )
        for name, most_written in allowed.items()
    }


def _use(prompts: list[int], written: int, allowed: int) -> Use:
    return Use(len(prompts), sum(prompts), len(prompts) * written, max(prompts) + allowed)


def _prompts(
    search: SearchConfig,
    system: Mapping[RoleName, int],
    written: Mapping[RoleName, int],
    *,
    passages: int,
    question: int,
    sub_query_tokens: int,
    tries: int,
) -> dict[RoleName, list[int]]:
    """Return the prompt tokens of all calls for one question: a list per role, with a number for
    each call. The prompt of a call contains all earlier turns of the same conversation.

    `search`: the limits that the run uses up. `system`: tokens of each role's system prompt.
    `written`: tokens of each role's output. `passages`: tokens of all passages of one search.
    `question`: tokens of the question. `sub_query_tokens`: tokens of a sub-query. `tries`: calls of
    the delegator for one decision, 1 or 2. With 2, each decision is corrected once. With 1, a
    further decision, to stop, is added.
    """
    results = search.max_sub_queries * (sub_query_tokens + written["execution"])
    turn = written["delegation"]
    first = system["delegation"] + question
    decisions = search.max_rounds + 2 - tries
    asked = system["execution"] + sub_query_tokens
    executor = [
        asked + number * written["execution"] + min(number, search.max_searches) * passages
        for number in range(search.max_turns)
    ]
    return {
        "delegation": [
            first + number * (tries * turn + results) + tried * turn
            for number in range(decisions)
            for tried in range(tries)
        ],
        "execution": executor * (search.max_rounds * search.max_sub_queries),
        "answer": [system["answer"] + question + search.max_rounds * results],
    }
