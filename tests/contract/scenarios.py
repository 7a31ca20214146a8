"""What is asked of the gateways and what their models say meanwhile: `scenarios.toml`, read.

In all texts `@@` is the scenario's tag, `@name`, and a text that is one of `_TEXTS` stands for what
is there. Models whose turns a scenario does not give say what `upstream.defaults` has for them.
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.upstream import Script, report

Json = dict[str, Any]
_TEXTS = {
    "$first": "<search>@@ a: which one?</search>",
    "$both": '<search>["@@ a: which one?", "@@ b: which other one?"]</search>',
    "$stop": "<stop/>Enough evidence<stop>",
    "$found": "<search>@@ a: it</search>",
    "$report": report("a"),
    "$chatty": "Hello! How can I help?",
    "$long": "which " * 700,
}
_QUESTION = {"question": "@@ Which one is it?"}
_CONTENT = {"content": "@@ Which one is it?"}
_MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "@@ Which one?"},
]
_REQUESTS: Json = {
    "AnswerService/Answer": _QUESTION,
    "AnswerService/StreamAnswer": _QUESTION,
    "ExecutionService/Execute": {"sub_query": "@@ a: which one?"},
    "CompletionService/Complete": {"role": "ROLE_ANSWER", "messages": _MESSAGES},
    "CompletionService/StreamComplete": {"role": "ROLE_ANSWER", "messages": _MESSAGES},
    "POST /v1/chat/completions": {
        "model": "rolegate",
        "messages": [{"role": "user", "content": _QUESTION["question"]}],
    },
    **{
        f"RunService/{rpc}": {"run_id": "$run"}
        for rpc in ("GetRun", "WatchRun", "CancelRun", "SubmitFeedback")
    },
}
"""What a step asks where it says nothing else."""


@dataclass(frozen=True)
class Step:
    """One request of a scenario."""

    rpc: str
    """A method, or a route of the OpenAI-compatible server."""
    request: Json
    """`$run` in it is the newest run of the scenario."""
    timeout_s: float = 20.0
    key: str = ""
    """Whose key is sent; empty for the operator's, where there are any."""
    when: tuple[str, int] | None = None
    """Begins once so many requests have come for a place."""
    leaves: tuple[str, int] | None = None
    """The client leaves once so many have come."""
    until: str = ""
    """It is made again and again until this stands in the JSON of its response, as what it asks
    for takes a while.
    """
    shape: bool = False
    """Whether only the shape of what it returns is compared, as it tells of other scenarios,
    too.
    """


@dataclass(frozen=True)
class Scenario:
    """Requests, and what models say upon them."""

    name: str
    steps: Sequence[Step]
    says: Script
    """Turns by place, `answer`, or by place and sub-query, `execution a`; the last one for ever."""
    gateway: str
    together: bool
    """Whether all steps are made at once."""
    shadows: int
    """How many runs of versions on trial are to be on record, too."""


def _scenario(name: str, given: Json) -> Scenario:
    given = _meant(given, f"@{name}")
    asked = given.get(
        "steps", [{"rpc": "AnswerService/Answer", "request": given.get("request", {})}]
    )
    steps = []
    for step in asked:
        request = {**_meant(_REQUESTS.get(step["rpc"], {}), f"@{name}"), **step.get("request", {})}
        steps.append(Step(**{**step, "request": request}))
    together = given.get("together", False)
    shadows = given.get("shadows", 0)
    return Scenario(
        name, steps, given.get("says", {}), given.get("gateway", "main"), together, shadows
    )


def _meant(value: Any, tag: str) -> Any:
    """A value with the texts that it stands for."""
    text = json.dumps(value)
    for short, long in _TEXTS.items():
        text = text.replace(json.dumps(short), json.dumps(long))
    return json.loads(text.replace("@@", tag))


_FILE = Path(__file__).parent / "scenarios.toml"
SCENARIOS = [
    _scenario(name, given) for name, given in tomllib.loads(_FILE.read_text("utf-8")).items()
]
