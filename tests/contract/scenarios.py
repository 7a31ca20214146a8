"""What is asked of the gateways and what their models say meanwhile, as data.

In all texts `@@` is the scenario's tag, `@name`; models whose turns a scenario does not give say what
`upstream.defaults` has for them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.contract.upstream import Turn, fails, report

Json = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One request of a scenario."""

    rpc: str
    """A method, or a route of the OpenAI-compatible server: `POST /v1/chat/completions`."""
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
    """It is made again and again until this stands in the JSON of its response, as what it asks for takes a while."""
    shape: bool = False
    """Whether only the shape of what it returns is compared, as it tells of other scenarios, too."""


@dataclass(frozen=True)
class Scenario:
    """Requests, and what models say upon them."""

    name: str
    steps: Sequence[Step]
    says: Mapping[str, list[Turn]] = field(default_factory=dict)
    """Turns by place, `answer`, or by place and sub-query, `execution a`; the last one for ever."""
    gateway: str = "main"
    together: bool = False
    """Whether all steps are made at once."""
    shadows: int = 0
    """How many runs of versions on trial are to be on record, too."""


STOP = "<stop/>Enough evidence<stop>"
FIRST = "<search>@@ a: which one?</search>"
BOTH = '<search>["@@ a: which one?", "@@ b: which other one?"]</search>'
FOUND = "<search>@@ a: it</search>"
CHATTY = "Hello! How can I help?"
LONG = "This model's maximum context length is 100 tokens."


def ask(more: Json | None = None, rpc: str = "AnswerService/Answer", **step: Any) -> Step:
    """A question."""
    return Step(rpc, {"question": "@@ Which one is it?", **(more or {})}, **step)


def streamed(more: Json | None = None, **step: Any) -> Step:
    """A question whose events are wanted."""
    return ask(more, "AnswerService/StreamAnswer", **step)


def execute(more: Json | None = None, **step: Any) -> Step:
    """A sub-query."""
    return Step("ExecutionService/Execute", {"sub_query": "@@ a: which one?", **(more or {})}, **step)


def complete(more: Json | None = None, rpc: str = "CompletionService/Complete", **step: Any) -> Step:
    """A call of a role's model."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "@@ Which one?"}]
    return Step(rpc, {"role": "ROLE_ANSWER", "messages": messages, **(more or {})}, **step)


def post(more: Json | None = None, **step: Any) -> Step:
    """A question for the OpenAI-compatible server."""
    messages = [{"role": "user", "content": "@@ Which one is it?"}]
    return Step("POST /v1/chat/completions", {"model": "rolegate", "messages": messages, **(more or {})}, **step)


def runs(rpc: str, more: Json | None = None, **step: Any) -> Step:
    """Something about the scenario's newest run."""
    return Step(f"RunService/{rpc}", {"run_id": "$run", **(more or {})}, **step)


def versions(rpc: str, more: Json | None = None, **step: Any) -> Step:
    """Something about versions of the executor."""
    return Step(f"ExecutorVersionService/{rpc}", more or {}, **step)


def topology(name: str) -> Json:
    """The topology of a request."""
    return {"topology": f"TOPOLOGY_{name}"}


def one(name: str, says: Mapping[str, list[Turn]], gateway: str = "main", **request: Any) -> Scenario:
    """A scenario of one question."""
    return Scenario(name, [ask(request)], says, gateway)


def several(letters: str) -> str:
    """A block of a sub-query for each letter."""
    return f"<search>{json.dumps([f'@@ {letter}: which?' for letter in letters])}</search>"


TWO_ROUNDS = {"delegation": [FIRST, "<search>@@ b: then which?</search>", STOP]}
WHAT_MODELS_SAY = [
    one("one-round", {}),
    one("two-rounds", TWO_ROUNDS),
    one("a-list", {"delegation": [BOTH, STOP]}),
    one("a-numbered-list", {"delegation": ["<search>\n1. @@ a: which?\n2. @@ b: which?\n</search>", STOP]}),
    one("too-many-sub-queries", {"delegation": [several("abcd"), STOP]}),
    one("rounds-run-out", {"delegation": [FIRST, "<search>@@ b: b?</search>", "<search>@@ c: c?</search>"]}),
    one("stops-at-once", {"delegation": [STOP]}),
    one("delegator-corrected", {"delegation": [CHATTY, FIRST, STOP]}),
    one("delegator-never-understood", {"delegation": [CHATTY]}),
    one("delegator-says-nothing", {"delegation": [""]}),
    one("delegator-cut", {"delegation": [{"say": '<search>["@@ a: which one?", "@@ b', "finish": "length"}, STOP]}),
    one("delegator-thinks", {"delegation": [f"<think>Perhaps <search>no</search></think>{FIRST}", STOP]}),
    one("delegator-invents-results", {"delegation": [f"{FIRST}<search_results>1</search_results>{STOP}", STOP]}),
    one("delegator-reasons-apart", {"delegation": [{"say": FIRST, "thinks": "hm hm"}, STOP]}),
    one("executor-reports-first", {"execution": [report("a"), FOUND, report("a")]}),
    one("executor-without-evidence", {"execution": [FOUND, "<answer>1</answer>", report("a")]}),
    one("executor-never-understood", {"execution": [CHATTY]}),
    one("executor-searches-on", {"execution": [FOUND]}),
    one("executor-two-queries", {"execution": ["<search>@@ a: it</search><search>@@ a: more</search>", report("a")]}),
    one("executor-cut", {"execution": [FOUND, {"say": "<answer>1</answer><evidence>Fact", "finish": "length"}]}),
    one("executor-escapes", {"execution": [FOUND, "<answer>1 &lt; 2</answer><evidence>- a &amp; b\n- c</evidence>"]}),
    one("answerer-says-nothing", {"answer": [""]}),
    one("answerer-only-thinks", {"answer": ["<think>Hm.</think>"]}),
    one("answerer-has-nothing", {"answer": ["<answer>Not found.</answer>"]}),
    one("answerer-without-tags", {"answer": ["It is 42."]}),
    one("answerer-cut", {"answer": [{"say": "<answer>It is 42 and", "finish": "length"}]}),
    one("nothing-found", {"retrieval": [{"passages": []}]}),
    one("no-report-at-all", {"execution": [FOUND, CHATTY]}),
]
TOPOLOGIES = [
    one("homogeneous", {}, **topology("HOMOGENEOUS")),
    one("searcher", {}, **topology("SEARCHER")),
    one("searcher-corrected", {"searcher": [CHATTY, "<answer>1</answer>"]}, **topology("SEARCHER")),
    one(
        "single-agent",
        {"delegation": ["<search>@@ a: it</search>", "<search>@@ b: it</search>", "<answer>1</answer>"]},
        **topology("SINGLE_AGENT"),
    ),
    one("single-agent-never-understood", {"delegation": [CHATTY]}, **topology("SINGLE_AGENT")),
    one("no-retrieval", {"delegation": ["<answer>1</answer>"]}, **topology("NO_RETRIEVAL")),
    one("topology-not-set-up", {}, "loose", **topology("SEARCHER")),
]
AGAIN = {"retry_after": "0"}
FAILURES = [
    one("refused-401", {"execution": [fails(401, "Incorrect API key")]}),
    one("refused-404-delegator", {"delegation": [fails(404, "The model does not exist.")]}),
    one("throttled-once", {"execution": [fails(429, **AGAIN), FOUND, report("a")]}),
    one("throttled-always", {"delegation": [fails(429, **AGAIN)]}),
    one("broken-500", {"execution": [fails(500, "CUDA error")]}),
    one("unavailable-once", {"delegation": [fails(503, **AGAIN), FIRST, STOP]}),
    one("unavailable-answerer", {"answer": [fails(503, **AGAIN)]}),
    one("garbage", {"execution": [{"body": "<html>Welcome</html>"}]}),
    one("garbage-answerer", {"answer": [{"body": "{", "kind": "application/json"}]}),
    one("reset-once", {"answer": [{"say": "", "reset": True}, "<answer>42</answer>"]}),
    one("cut-once", {"delegation": [{"say": FIRST, "cut": 2}, FIRST, STOP]}),
    one("cut-without-usage", {"execution": [{"say": FOUND, "cut": 2, "usage": None}, FOUND, report("a")]}),
    one("cut-always", {"execution": [FOUND, {"say": report("a"), "cut": 1}]}),
    one("silent-model", {"execution": [{"hang": True}]}),
    one("stalls", {"answer": [{"say": "<answer>It is 42.</answer>", "cut": 2, "held": True}]}),
    one("one-of-two-fails", {"delegation": [BOTH, STOP], "execution b": [fails(401)]}),
    one("without-usage", {"answer": [{"say": "<answer>42</answer>", "usage": None}]}),
    one("impossible-usage", {"answer": [{"say": "42", "usage": {"prompt_tokens": 1, "completion_tokens": 10**6}}]}),
    one("context-too-long-executor", {"execution": [FOUND, fails(400, LONG), report("a")]}),
    one("context-too-long-always", {"execution": [fails(400, LONG)]}),
    one("context-full-of-reports", {"delegation": [FIRST, fails(400, LONG)]}),
    one("retrieval-unavailable", {"retrieval": [{"code": "UNAVAILABLE"}]}),
    one("retrieval-unavailable-once", {"retrieval": [{"code": "UNAVAILABLE"}, {}]}),
    one("retrieval-refused", {"retrieval": [{"code": "INVALID_ARGUMENT"}]}),
    one("retrieval-garbled", {"retrieval": [{"too_many": True}]}),
    one("retrieval-silent", {"retrieval": [{"hang": True}]}),
    Scenario("failed-then-again", [ask({"request_id": "@@"})] * 2, {"execution": [fails(401), FOUND, report("a")]}),
]
ENOUGH = {"max_total_tokens": 9000}
BUDGETS = [
    one("budget-for-nothing", {}, budget={"max_total_tokens": 5}),
    one("budget-for-one-round", TWO_ROUNDS, budget={"max_total_tokens": 320}),
    one("budget-that-suffices", {}, budget=ENOUGH),
    one("budget-of-a-role", {}, budget={"role_budgets": [{"role": "ROLE_EXECUTION", "max_total_tokens": 50}]}),
    one("budget-in-money", {}, budget={"max_cost_nano_usd": 2_000_000}),
    one("budget-in-money-without-price", {}, "loose", budget={"max_cost_nano_usd": 1_000_000}),
    one("budget-and-a-cut-call", {"execution": [{"say": FOUND, "cut": 2}, FOUND, report("a")]}, budget=ENOUGH),
    Scenario("deadline-without-a-report", [ask(timeout_s=1.0)], {"execution": [{"hang": True}]}),
    Scenario(
        "deadline-with-a-report", [ask(timeout_s=1.5)], {"delegation": [BOTH, STOP], "execution b": [{"hang": True}]}
    ),
    Scenario("execute-deadline", [execute(timeout_s=0.9)], {"execution": [FOUND, {"hang": True}]}),
]
SHARING = [
    Scenario("kept-report", [ask(), ask()]),
    Scenario("kept-report-fresh", [ask(), ask({"fresh": True})]),
    Scenario(
        "shared-report",
        [ask(), execute(when=("execution", 1))],
        {"execution": [{"say": FOUND, "pause_s": 0.3}, report("a")]},
        together=True,
    ),
    Scenario("request-id-again", [ask({"request_id": "@@"}), ask({"request_id": "@@"})]),
    Scenario("request-id-taken", [ask({"request_id": "@@"}), ask({"request_id": "@@", "question": "@@ No?"})]),
    Scenario("request-id-meanwhile", [ask({"request_id": "@@"})] * 2, together=True),
    Scenario("request-id-streamed", [streamed({"request_id": "@@"}), streamed({"request_id": "@@"})]),
    Scenario("execute", [execute({"request_id": "@@"}), execute({"request_id": "@@"})]),
    Scenario("complete", [complete({"request_id": "@@"}), complete({"request_id": "@@"})]),
]
HELD: Mapping[str, list[Turn]] = {"execution": [FOUND, {"say": report("a"), "hang": True}]}
CANCELLING = [
    Scenario("cancelled", [streamed(), runs("CancelRun", when=("execution", 2))], HELD, together=True),
    Scenario("client-leaves", [ask(leaves=("execution", 2))], HELD),
    Scenario(
        "client-leaves-a-stream",
        [complete(rpc="CompletionService/StreamComplete", leaves=("answer", 1))],
        {"answer": [{"say": "one two three", "cut": 2, "held": True}]},
    ),
]
FEEDBACK = {"verdict": "VERDICT_ACCEPTED", "score": 0.5, "gold_answer": "42", "comment": "good"}
RUNS = [
    Scenario("streamed", [streamed(), runs("WatchRun"), runs("WatchRun", {"after_event_number": 3})]),
    Scenario(
        "feedback",
        [ask(), runs("SubmitFeedback", FEEDBACK), runs("SubmitFeedback"), runs("SubmitFeedback", {"score": 2})],

    ),
    Scenario("run-not-found", [runs("GetRun", {"run_id": "nobody"}), runs("CancelRun", {"run_id": "nobody"})]),
    Scenario("watch-no-answer", [execute(), runs("WatchRun")]),
    Scenario("run-listed", [ask(), Step("RunService/ListRuns", {"page_size": 1}, shape=True)]),
    Scenario("run-exported", [ask(), Step("RunService/ExportRuns", {"kind": "RUN_KIND_ANSWER"}, shape=True)]),
    Scenario(
        "complete-streamed",
        [complete({"stop": ["two"], "max_tokens": 9}, rpc="CompletionService/StreamComplete")],
        {"answer": [{"say": "one and two", "thinks": "hm"}]},
    ),
    Scenario(
        "bad-requests",
        [
            ask({"question": " "}),
            ask({"question": "x" * 5000}),
            ask({"budget": {"max_total_tokens": -1}}),
            execute({"sub_query": ""}),
            complete({"role": "ROLE_JUDGE"}),
            complete({"messages": []}),
            complete({"max_tokens": -1}),
            Step("RetrievalService/Search", {"queries": []}),
            Step("RunService/ListRuns", {"page_token": "x"}),
            versions("PromoteExecutorVersion", {"version": "nobody"}),
            versions("RegisterExecutorVersion", {"version": "executor-000009"}),
            versions("RollBackExecutorVersion", {"version": "small"}),
        ],

    ),
    Scenario("search", [Step("RetrievalService/Search", {"queries": ["@@ a: it", "@@ b: it"], "top_k": 1})]),
    Scenario(
        "usage",
        [
            Step("UsageService/GetUsage", {"group_by": ["USAGE_DIMENSION_TENANT"], "bucket": "USAGE_BUCKET_MONTH"}, shape=True),
            Step("UsageService/GetUsage", {}, shape=True),
            Step("UsageService/ReconcileUsage", {}, shape=True),
        ],

    ),
]
NEW = {"version": "executor-000001"}
VERSIONS = [
    Scenario(
        "a-version-on-trial",
        [
            versions("ListExecutorVersions"),
            versions("RegisterExecutorVersion", NEW),
            versions("SetExecutorVersionTraffic", {**NEW, "state": "EXECUTOR_VERSION_STATE_SHADOW"}),
            ask({"fresh": True}),
            versions("ListExecutorVersions", until='"trials": "1"'),
        ],
        shadows=1,

    ),
    Scenario(
        "a-version-as-canary",
        [
            versions(
                "SetExecutorVersionTraffic", {**NEW, "state": "EXECUTOR_VERSION_STATE_CANARY", "canary_share": 1.0}
            ),
            ask(),
            versions("PromoteExecutorVersion", NEW),
            versions("ListExecutorVersions"),
            versions("RollBackExecutorVersion", NEW),
            versions("ListExecutorVersionDecisions"),
        ],
    ),
]
OPENAI = [
    Scenario("openai", [post(), post({"model": "rolegate-executor", "messages": [{"role": "user", "content": "@@ a: which?"}]}), Step("GET /v1/models", {})]),
    Scenario(
        "openai-streamed",
        [post({"stream": True, "stream_options": {"include_usage": True}})],
    ),
    Scenario(
        "openai-refused",
        [
            post({"model": "gpt-4"}),
            post({"n": 2}),
            post({"messages": []}),
            post({"tool_choice": "required"}),
            post({"messages": "x"}),
            Step("GET /v1/models/rolegate", {}),
            Step("GET /v1/models/gpt-4", {}),
            Step("GET /health", {}),
            Step("GET /nowhere", {}),
            Step("GET /v1/chat/completions", {}),
        ],

    ),
    Scenario("openai-malformed", [post()], {"delegation": [CHATTY]}),
    Scenario("openai-model-refuses", [post()], {"execution": [fails(401)]}),
    Scenario("openai-model-broken", [post()], {"answer": [fails(500)]}),
    Scenario("openai-model-garbled", [post()], {"answer": [{"body": "{"}]}),
    Scenario("openai-too-long", [post()], {"execution": [fails(400, LONG)]}),
    Scenario("openai-stream-fails", [post({"stream": True})], {"answer": [fails(500)]}),
    Scenario("openai-out-of-time", [post()], {"execution": [{"hang": True}]}, "broken"),
]
LOOSE = [
    one("loose-one-round", {}, "loose"),
    one(
        "early-sub-queries",
        {"delegation": [{"say": BOTH}, STOP], "execution a": [{"say": FOUND, "after": ("delegation", 1)}, report("a")]},
        "loose",
    ),
    one(
        "early-guess-wasted",
        {
            "delegation": [
                {"say": BOTH, "cut": 5, "wait": ("execution a", 2)},
                "<search>@@ b: which other one?</search>",
                STOP,
            ],
            "execution a": [FOUND, {"say": report("a"), "hang": True}],
        },
        "loose",
    ),
    one("loose-over-limit", {"delegation": [several("abc"), STOP]}, "loose"),
    one("loose-no-evidence", {"retrieval": [{"passages": []}]}, "loose"),
    one("loose-no-search", {"delegation": [STOP]}, "loose"),
    one("loose-searches-on", {"execution": [FOUND]}, "loose"),
    one("fallback", {"answer": [fails(503, **AGAIN)], "delegation": [FIRST, STOP, "<answer>7</answer>"]}, "loose"),
    Scenario("loose-homogeneous", [ask(topology("HOMOGENEOUS"))], gateway="loose"),
    one("options-refused", {"answer": [{"say": "<answer>42</answer>", "refuses": ["stream_options"]}]}, "loose"),
]
STRUCTURE = [
    one("structure-refused", {"execution": [fails(400, "structured_outputs: no"), FOUND, report("a")]}, "guarded"),
    one("structure-given-up", {}, "guarded"),
]
BROKEN = [
    one("nobody-there", {}, "broken", **topology("SEARCHER")),
    Scenario("answerer-not-there", [ask(), post()], {"execution": [FOUND, report("a"), "7"]}, "broken"),
    one("replicas", {"delegation": [fails(503), FIRST, STOP]}, "broken"),
    Scenario("out-of-scope", [ask({"question": "@@ Which banana is it?"})], gateway="broken"),
    Scenario("too-long-a-question", [ask({"question": "which " * 40})], gateway="broken"),
]
GUARDED = [
    Scenario(
        "keys",
        [
            ask(key="none"),
            ask(key="wrong"),
            ask(key="trainer"),
            Step("UsageService/ReconcileUsage", {}, key="acme"),
            Step("ExecutorVersionService/ListExecutorVersions", {}, key="acme"),
            Step("RunService/ExportRuns", {}, key="acme"),
            post(key="none"),
            post(key="trainer"),
            Step("GET /v1/models", {}, key="wrong"),
            Step("GET /health", {}, key="none"),
        ],
        gateway="guarded",

    ),
    Scenario("tenant", [ask(key="acme"), runs("GetRun", key="acme"), runs("GetRun", key="poor")], gateway="guarded"),
    Scenario("tenant-usage", [Step("UsageService/GetUsage", {}, key="acme")], gateway="guarded"),
    Scenario("tenant-is-told-less", [ask(key="acme")], {"execution": [fails(401, "secret")]}, gateway="guarded"),
    Scenario("tenant-redacted", [ask({"request_id": "@@"}, key="quiet")] * 2, gateway="guarded"),
    Scenario("quota-of-tokens", [ask(key="poor"), post(key="poor")], gateway="guarded"),
    Scenario("quota-of-requests", [ask(key="seldom"), ask(key="seldom")], gateway="guarded"),
    Scenario("quota-in-money", [ask(key="unpriced")], gateway="guarded"),
    Scenario(
        "overloaded",
        [
            ask(key="acme", timeout_s=1.5),
            ask(key="acme", when=("execution", 2)),
            post(key="acme", when=("execution", 2)),
        ],
        HELD,
        "guarded",
        together=True,

    ),
    Scenario(
        "not-shared-with-others",
        [execute(key="acme"), execute(key="rich"), execute(key="acme")],
        gateway="guarded",
    ),
]
FAULTS = [replace(one, gateway="faults") if one.gateway == "main" else one for one in (*FAILURES, *BUDGETS, *OPENAI)]
SCENARIOS: list[Scenario] = [
    *WHAT_MODELS_SAY,
    *TOPOLOGIES,
    *FAULTS,
    *SHARING,
    *CANCELLING,
    *RUNS,
    *LOOSE,
    *BROKEN,
    *GUARDED,
    *STRUCTURE,
    *VERSIONS,
]
