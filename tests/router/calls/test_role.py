"""A role: which failures are worth another attempt, and that every attempt is booked."""

import asyncio
from dataclasses import replace

import pytest

from router.amount import NOTHING, Amount
from router.calls.limits import prompt_bound
from router.errors import (
    BudgetExhausted,
    ContentRefused,
    QuotaExhausted,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.ledger import Budget, Ledger
from router.ledger.budget import Allowance
from router.ledger.journal import NoJournal
from router.models import Completion, Delta, Message, Usage
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.trace import Price
from router.trace.call import OpenedCall
from tests.openai_behaviours import disconnects, text_event
from tests.openai_server import MODEL, Behaviour, OpenAIServer, fails, hang, says, streams
from tests.router.clock import Clock, with_clock
from tests.router.deployment import HeldModel, role
from tests.scripted_model import ScriptedModel

ASKED = (Message("user", "hi"),)
REFUSED = UpstreamRefused("wrong key", endpoint="e")
GARBLED = UpstreamProtocolError("not JSON", endpoint="e")


def down(retry_after_s: float | None = 0.0) -> UpstreamUnavailable:
    """Return the failure of an endpoint that is unavailable for now."""
    return UpstreamUnavailable("overloaded", endpoint="e", retry_after_s=retry_after_s)


async def test_a_successful_call_has_one_row() -> None:
    ledger = Ledger()
    model = ScriptedModel([Completion("yes", "stop", usage=Usage(3, 1))])
    completion = await role("execution", model, 3).ask(
        ASKED, (), ledger, purpose="correction", sub_query_index=4
    )
    assert completion.text == "yes"
    (call,) = ledger.calls
    assert (call.purpose, call.attempt, call.sub_query_index, call.usage) == (
        "correction",
        1,
        4,
        Usage(3, 1),
    )


async def test_a_call_to_an_unavailable_model_is_retried() -> None:
    """Each attempt has its row. Attempts after the first have the purpose `retry`, regardless of
    the first one's.
    """
    ledger = Ledger()
    model = ScriptedModel([down(), down(), "yes"])
    await role("answer", model, 3).ask(ASKED, (), ledger, purpose="correction")
    assert [(call.purpose, call.attempt, call.outcome) for call in ledger.calls] == [
        ("correction", 1, "unavailable"),
        ("retry", 2, "unavailable"),
        ("retry", 3, "completed"),
    ]
    assert [prompt.request_id for prompt in model.prompts] == [
        call.request_id for call in ledger.calls
    ]
    assert len({prompt.messages for prompt in model.prompts}) == 1


async def test_the_last_attempt_raises() -> None:
    """The error names the role."""
    ledger = Ledger()
    with pytest.raises(UpstreamUnavailable, match=r"^delegation at e: overloaded$"):
        await role("delegation", ScriptedModel([down(), down()]), 2).ask(ASKED, (), ledger)
    assert len(ledger.calls) == 2


@pytest.mark.parametrize("error", [REFUSED, GARBLED])
async def test_a_permanent_failure_is_not_retried(error: UpstreamError) -> None:
    """Refusals and malformed replies are permanent."""
    ledger = Ledger()
    with pytest.raises(type(error), match=r"^answer at e"):
        await role("answer", ScriptedModel([error, "yes"]), 3).ask(ASKED, (), ledger)
    assert [call.outcome for call in ledger.calls] == [
        "refused" if error is REFUSED else "protocol_error"
    ]


@pytest.mark.parametrize("retry_after_s", [0.0, 7.0, 30.0])
def test_retry_after_is_honoured(retry_after_s: float) -> None:
    """The longest wait is half a minute; zero means no wait."""

    async def main(clock: Clock) -> None:
        model = ScriptedModel([down(retry_after_s), "yes"])
        answer = asyncio.create_task(role("answer", model, 2).ask(ASKED, (), Ledger()))
        await clock.advance(max(0.0, retry_after_s - 0.1))
        assert len(model.prompts) == (1 if retry_after_s else 2)
        await clock.advance(0.2)
        assert (await answer).text == "yes"

    with_clock(main)


async def test_a_retry_after_of_more_than_half_a_minute_is_not_waited_for() -> None:
    """The attempt fails immediately, so that the caller can go elsewhere."""
    with pytest.raises(UpstreamUnavailable):
        await role("answer", ScriptedModel([down(30.1), "yes"]), 2).ask(ASKED, (), Ledger())


def test_without_retry_after_the_pause_is_short_and_bounded() -> None:
    """Each pause is at most twice the one before."""

    async def main(clock: Clock) -> None:
        model = ScriptedModel([*[down(None)] * 4, "yes"])
        answer = asyncio.create_task(role("answer", model, 5).ask(ASKED, (), Ledger()))
        for attempts in range(1, 5):
            await clock.settle()
            assert attempts <= len(model.prompts)
            await clock.advance(2.0)
        assert (await answer).text == "yes"

    with_clock(main)


async def test_a_cancelled_call_is_booked() -> None:
    """Its row is written once its usage is counted."""
    ledger = Ledger()
    model = HeldModel(ScriptedModel(["yes"]))
    call_task = asyncio.create_task(role("answer", model, 3).ask(ASKED, (), ledger))
    await model.called.wait()
    call_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call_task
    await ledger.close(10)
    assert [(call.outcome, call.usage) for call in ledger.calls] == [
        ("cancelled", Usage(1, 1, estimated=True))
    ]


async def test_an_unexpected_error_is_booked_and_not_retried() -> None:
    ledger = Ledger()
    with pytest.raises(RuntimeError):
        await role("answer", ScriptedModel([]), 3).ask(ASKED, (), ledger)
    assert [call.outcome for call in ledger.calls] == ["failed"]


async def test_a_limit_replaces_the_role_s_own() -> None:
    """A limit of 0 keeps the role's own."""
    model = ScriptedModel(["a", "b"])
    for limit in (5, 0):
        await role("answer", model).limited(limit).ask(ASKED, (), Ledger())
    assert [prompt.sampling.max_tokens for prompt in model.prompts] == [5, 64]


async def test_a_model_without_a_system_role_gets_its_text_in_the_user_s_turn() -> None:
    """The conversation itself is unchanged."""
    model = ScriptedModel(["a"])
    asked_role = replace(role("answer", model), system_role=False)
    opening = asked_role.opening("hi")
    await asked_role.ask(opening, (), Ledger())
    assert opening == (Message("system", "answer"), Message("user", "hi"))
    assert [prompt.messages for prompt in model.prompts] == [(Message("user", "answer\n\nhi"),)]


async def test_deltas_come_from_the_attempt_that_writes() -> None:
    """Text and reasoning are passed on as they are written; failed attempts pass on nothing."""
    ledger = Ledger()
    deltas = list[Delta]()
    model = ScriptedModel([down(), Completion("a b", "stop", "hm", Usage(3, 2))])
    completion = await role("answer", model, 2).ask(ASKED, (), ledger, on_delta=deltas.append)
    assert "".join(delta.text for delta in deltas) == completion.text == "a b"
    assert "".join(delta.reasoning for delta in deltas) == "hm"
    assert [(call.outcome, call.usage) for call in ledger.calls] == [
        ("unavailable", None),
        ("completed", Usage(3, 2)),
    ]


async def test_a_call_that_is_cut_after_its_first_delta_is_not_retried(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """No fallback is called either, and a fallback that is cut is treated alike."""
    deltas = list[Delta]()
    streaming = role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL), 3)
    spare = replace(
        role("answer", ScriptedModel([])),
        fallbacks=(streaming, role("answer", ScriptedModel(["never"]))),
    )
    for tested in (
        replace(streaming, fallbacks=(role("answer", ScriptedModel(["never"])),)),
        spare,
    ):
        openai_server.plays(streams(text_event("a")), says("a b"))
        ledger = Ledger()
        failing = replace(tested, model=ScriptedModel([GARBLED])) if tested is spare else tested
        with pytest.raises(
            UpstreamUnavailable,
            match=r"^answer at .* the output was complete; try again$",
        ):
            await failing.ask(ASKED, (), ledger, on_delta=deltas.append)
        await ledger.close(10)
        assert [call.outcome for call in ledger.calls] == ["protocol_error"] * (tested is spare) + [
            "unavailable"
        ]
    assert [delta.text for delta in deltas] == ["a", "a"]


async def test_a_reader_that_leaves_stops_the_engine(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """The last usage is booked as a lower bound."""
    openai_server.plays(
        streams(text_event("a", {"prompt_tokens": 11, "completion_tokens": 2}), then=hang)
    )
    ledger = Ledger()
    first_delta = asyncio.Event()
    asked_role = role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL))
    call_task = asyncio.create_task(
        asked_role.ask(ASKED, (), ledger, on_delta=lambda _delta: first_delta.set())
    )
    await first_delta.wait()
    call_task.cancel()
    await asyncio.gather(call_task, return_exceptions=True)
    await disconnects(openai_server)
    (call,) = ledger.calls
    assert (call.outcome, call.usage) == ("cancelled", Usage(11, 2, lower_bound=True))


ANSWERS: list[Behaviour] = [
    says("a ", "b"),
    says("a", finish_reason="length"),
    says("a", reasoning={"reasoning": "hm"}),
    says("a", stop_reason="</y>"),
    says("a</y> b", usage=None),
    says("", usage=None),
]


@pytest.mark.parametrize("behaviour", ANSWERS)
async def test_a_streamed_call_gives_the_same_completion(
    pool: ConnectionPool, openai_server: OpenAIServer, behaviour: Behaviour
) -> None:
    openai_server.plays(behaviour)
    streamed = role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL))
    completions = [
        await asked_role.ask(ASKED, ("</y>",), Ledger())
        for asked_role in (streamed, replace(streamed, streams=False))
    ]
    assert completions[0] == completions[1]
    assert [body.get("stream", False) for body in openai_server.bodies] == [True, False]


async def test_a_streamed_scripted_model_gives_the_same_completion() -> None:
    whole = Completion("a  b\n", "length", "hm", Usage(3, 2, 1, 1), overran=True)
    streamed = role("answer", ScriptedModel(lambda _: whole))
    for asked_role in (streamed, replace(streamed, streams=False)):
        assert await asked_role.ask(ASKED, (), Ledger()) == whole


async def test_a_cut_call_keeps_its_last_usage_and_its_time_to_first_token(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    openai_server.plays(
        streams(text_event("a", {"prompt_tokens": 11, "completion_tokens": 2})), says("a")
    )
    ledger = Ledger()
    await role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL), 2).ask(ASKED, (), ledger)
    cut, whole = ledger.calls
    assert (cut.outcome, cut.usage, cut.wasted_tokens) == (
        "unavailable",
        Usage(11, 2, lower_bound=True),
        13,
    )
    assert (whole.outcome, whole.usage) == ("completed", Usage(11, 7, 4, 3))
    for call in (cut, whole):
        assert call.first_token_s is not None
        assert 0 <= call.first_token_s <= call.duration_s


async def test_a_cut_call_without_a_count_is_estimated(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """The model's tokenizer counts the prompt and the text. Without a tokenizer, the usage is
    unknown.
    """
    openai_server.plays(streams(text_event("two words")), fails(400, "no"))
    openai_server.tokenizes = True
    ledger = Ledger()
    asked_role = role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL), 2)
    with pytest.raises(UpstreamRefused):
        await asked_role.ask(ASKED, (), ledger)
    await ledger.close(10)
    assert [call.usage for call in ledger.calls] == [None, Usage(1, 2, estimated=True)]
    openai_server.plays(streams(text_event("two words")), fails(400, "no"))
    openai_server.tokenizes = False
    ledger = Ledger()
    with pytest.raises(UpstreamRefused):
        await asked_role.ask(ASKED, (), ledger)
    await ledger.close(10)
    assert [call.usage for call in ledger.calls] == [None, None]


async def test_a_row_names_its_deployment_or_its_endpoint() -> None:
    """It has the limit on tokens, the version, and the cost too."""
    ledger = Ledger()
    plain = role("execution", ScriptedModel(lambda _: Completion("yes", "stop", usage=Usage(3, 1))))
    price = Price(prompt=1.0, completion=10.0)
    named = replace(
        plain,
        deployment="executor",
        executor_version="executor-000007",
        price=price,
        context_tokens=20,
    )
    for asked_role in (plain, named):
        await asked_role.ask(ASKED, (), ledger)
    unnamed_call, named_call = ledger.calls
    assert (unnamed_call.deployment, unnamed_call.executor_version, unnamed_call.nano_usd) == (
        "scripted://scripted",
        None,
        None,
    )
    assert (named_call.deployment, named_call.executor_version, named_call.nano_usd) == (
        "executor",
        "executor-000007",
        13_000,
    )
    assert (unnamed_call.max_tokens, named_call.max_tokens) == (64, 64)
    assert (unnamed_call.prompt_bound, named_call.prompt_bound) == (prompt_bound(ASKED), 20)


class Thrifty(NoJournal):
    """A journal that records reservations and refuses those above a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = list[Amount]()

    async def open(self, call: OpenedCall) -> None:
        self.reserved.append(call.reserved)
        if call.reserved.tokens > self.limit:
            raise QuotaExhausted("no more today", retry_after_s=60.0)


async def test_a_limited_call_reserves_its_worst_case() -> None:
    """The worst case is the prompt's bound by bytes plus all output tokens. An unlimited call
    reserves nothing.
    """
    journal = Thrifty(10**6)
    asked_role = replace(
        role("answer", ScriptedModel(lambda _: "yes")), price=Price(prompt=1.0, completion=10.0)
    )
    await asked_role.ask(ASKED, (), Ledger(journal=journal))
    await asked_role.ask(ASKED, (), Ledger(journal=journal, limited=True))
    await replace(asked_role, context_tokens=100).ask(
        ASKED, (), Ledger(journal=journal, limited=True)
    )
    bound = prompt_bound(ASKED)
    assert journal.reserved == [
        NOTHING,
        Amount(bound + 64, bound * 1000 + 64 * 10_000),
        Amount(100, 100 * 1000 + 64 * 10_000),
    ]


async def test_a_reservation_refused_by_bytes_is_repeated_by_tokens() -> None:
    """The model's tokenizer gives the exact count, which is tried once."""
    asked_role = replace(role("answer", ScriptedModel(lambda _: "yes")), attempts=3)
    journal = Thrifty(65)
    assert (await asked_role.ask(ASKED, (), Ledger(journal=journal, limited=True))).text == "yes"
    assert [amount.tokens for amount in journal.reserved] == [prompt_bound(ASKED) + 64, 1 + 64]
    ledger = Ledger(journal=Thrifty(64), limited=True)
    with pytest.raises(QuotaExhausted) as refused:
        await asked_role.ask(ASKED, (), ledger)
    assert refused.value.retry_after_s == 60.0
    assert (ledger.calls, ledger.refusal) == ((), refused.value)


async def test_without_a_tokenizer_the_bound_by_bytes_decides(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """Nothing is sent."""
    asked_role = role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL))
    with pytest.raises(QuotaExhausted):
        await asked_role.ask(ASKED, (), Ledger(journal=Thrifty(65), limited=True))
    assert openai_server.bodies == []


async def test_a_retry_reserves_again() -> None:
    """An attempt without usage counts as spent in full, so a retry may exceed the budget."""
    budget = Budget(max_total_tokens=prompt_bound(ASKED) + 64 + 64)
    ledger = Ledger(allowance=Allowance(budget))
    with pytest.raises(BudgetExhausted, match=r"budget\.max_total_tokens"):
        await role("answer", ScriptedModel([down(), "yes"]), 2).ask(ASKED, (), ledger)
    assert [call.outcome for call in ledger.calls] == ["unavailable"]


async def test_there_are_as_many_rows_as_requests(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """Holds for every outcome."""
    openai_server.plays(
        fails(503, "loading", "0"),
        fails(429, "slow down", "0"),
        says("yes"),
        fails(400, "no"),
        hang,
    )
    ledger = Ledger()
    asked_role = role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL), 3)
    await asked_role.ask(ASKED, (), ledger)
    with pytest.raises(UpstreamRefused):
        await asked_role.ask(ASKED, (), ledger)
    openai_server.received.clear()
    cancelled_call = asyncio.create_task(asked_role.ask(ASKED, (), ledger))
    await openai_server.received.wait()
    cancelled_call.cancel()
    await asyncio.gather(cancelled_call, return_exceptions=True)
    outcomes = [call.outcome for call in ledger.calls]
    assert outcomes == ["connect_error", "connect_error", "completed", "refused", "cancelled"]
    assert len(openai_server.bodies) == len(ledger.calls)


CUT_WITHIN: list[Behaviour] = [
    says(None, reasoning={"reasoning_content": "I could write "}),
    says(None, usage=None),
    says("<think>I could write "),
    says("I look.\n<thinking>I could write "),
    says("<|channel|>analysis<|message|>I could write "),
]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("behaviour", CUT_WITHIN)
async def test_an_endpoint_that_stops_in_its_reasoning_gets_no_stop_strings(
    pool: ConnectionPool, openai_server: OpenAIServer, behaviour: Behaviour, *, streams: bool
) -> None:
    """The call is repeated once and booked as a retry. The output still ends at the stop
    strings.
    """
    asked_role = replace(
        role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL)), streams=streams, attempts=1
    )
    ledger = Ledger()
    openai_server.plays(behaviour, says("<think>so</y></think>a</y>", " b"))
    for _ in range(2):
        assert (await asked_role.ask(ASKED, ("</y>",), ledger)).text == "a</y>"
    assert [body.get("stop") for body in openai_server.bodies] == [["</y>"], None, None]
    assert [(call.outcome, call.purpose) for call in ledger.calls] == [
        ("completed", "first"),
        ("completed", "retry"),
        ("completed", "first"),
    ]


async def test_a_refusal_is_booked_with_its_tokens_and_not_retried(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    openai_server.plays(says("No", finish_reason="content_filter"))
    ledger = Ledger()
    with pytest.raises(ContentRefused):
        await role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL)).ask(ASKED, (), ledger)
    (call,) = ledger.calls
    assert (call.outcome, call.usage) == ("content_refused", Usage(11, 7, 4, 3))
