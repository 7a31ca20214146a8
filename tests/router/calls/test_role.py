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
from router.models import Completion, Delta, Message, ScriptedModel, Usage
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.testing.openai_server import (
    MODEL,
    Behaviour,
    OpenAIServer,
    fails,
    hang,
    says,
    streams,
    text_event,
)
from router.trace import Price
from router.trace.call import OpenedCall
from tests.router.clock import Clock, with_clock
from tests.router.deployment import HeldModel, role

ASKED = (Message("user", "hi"),)
REFUSED = UpstreamRefused("wrong key", endpoint="e")
GARBLED = UpstreamProtocolError("not JSON", endpoint="e")


def down(retry_after_s: float | None = 0.0) -> UpstreamUnavailable:
    """An endpoint that is not there for now."""
    return UpstreamUnavailable("overloaded", endpoint="e", retry_after_s=retry_after_s)


async def test_one_call_one_row() -> None:
    """A call that goes well is one attempt."""
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


async def test_what_is_unavailable_is_tried_again() -> None:
    """Each attempt has its row, and attempts after the first are retries, whatever the first
    was for.
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
    """Once the attempts are used up the error names the role."""
    ledger = Ledger()
    with pytest.raises(UpstreamUnavailable, match=r"^delegation at e: overloaded$"):
        await role("delegation", ScriptedModel([down(), down()]), 2).ask(ASKED, (), ledger)
    assert len(ledger.calls) == 2


@pytest.mark.parametrize("error", [REFUSED, GARBLED])
async def test_what_will_not_change_is_not_tried_again(error: UpstreamError) -> None:
    """A refusal, or garbage, is final."""
    ledger = Ledger()
    with pytest.raises(type(error), match=r"^answer at e"):
        await role("answer", ScriptedModel([error, "yes"]), 3).ask(ASKED, (), ledger)
    assert [call.outcome for call in ledger.calls] == [
        "refused" if error is REFUSED else "protocol_error"
    ]


@pytest.mark.parametrize("retry_after_s", [0.0, 7.0, 30.0])
def test_retry_after_is_honoured(retry_after_s: float) -> None:
    """Up to half a minute; zero means now."""

    async def main(clock: Clock) -> None:
        model = ScriptedModel([down(retry_after_s), "yes"])
        asking = asyncio.create_task(role("answer", model, 2).ask(ASKED, (), Ledger()))
        await clock.advance(max(0.0, retry_after_s - 0.1))
        assert len(model.prompts) == (1 if retry_after_s else 2)
        await clock.advance(0.2)
        assert (await asking).text == "yes"

    with_clock(main)


async def test_the_longest_wait() -> None:
    """Who asks for more than half a minute is not waited for at all, so that a caller can go
    elsewhere.
    """
    with pytest.raises(UpstreamUnavailable):
        await role("answer", ScriptedModel([down(30.1), "yes"]), 2).ask(ASKED, (), Ledger())


def test_without_retry_after_the_pause_is_short_and_bounded() -> None:
    """The pauses grow, each to twice the last one at most."""

    async def main(clock: Clock) -> None:
        model = ScriptedModel([*[down(None)] * 4, "yes"])
        asking = asyncio.create_task(role("answer", model, 5).ask(ASKED, (), Ledger()))
        for attempts in range(1, 5):
            await clock.settle()
            assert attempts <= len(model.prompts)
            await clock.advance(2.0)
        assert (await asking).text == "yes"

    with_clock(main)


async def test_cancelling_is_booked() -> None:
    """A call that is cancelled has its row too, once what it spent is counted."""
    ledger = Ledger()
    model = HeldModel(ScriptedModel(["yes"]))
    asking = asyncio.create_task(role("answer", model, 3).ask(ASKED, (), ledger))
    await model.called.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await ledger.close(10)
    assert [(call.outcome, call.usage) for call in ledger.calls] == [
        ("cancelled", Usage(1, 1, estimated=True))
    ]


async def test_a_foreign_error_is_booked_and_not_retried() -> None:
    """A bug is no reason to try again."""
    ledger = Ledger()
    with pytest.raises(RuntimeError):
        await role("answer", ScriptedModel([]), 3).ask(ASKED, (), ledger)
    assert [call.outcome for call in ledger.calls] == ["failed"]


async def test_limited() -> None:
    """A limit replaces the role's own; 0 keeps it."""
    model = ScriptedModel(["a", "b"])
    for limit in (5, 0):
        await role("answer", model).limited(limit).ask(ASKED, (), Ledger())
    assert [prompt.sampling.max_tokens for prompt in model.prompts] == [5, 64]


async def test_no_system_role() -> None:
    """What the system says is sent in the user's turn; the conversation stays as it is."""
    model = ScriptedModel(["a"])
    asked = replace(role("answer", model), system_role=False)
    opening = asked.opening("hi")
    await asked.ask(opening, (), Ledger())
    assert opening == (Message("system", "answer"), Message("user", "hi"))
    assert [prompt.messages for prompt in model.prompts] == [(Message("user", "answer\n\nhi"),)]


async def test_what_is_passed_on() -> None:
    """Text and thoughts as they are written, of the attempt that comes to a first token, and of
    no other one.
    """
    ledger = Ledger()
    heard = list[Delta]()
    model = ScriptedModel([down(), Completion("a b", "stop", "hm", Usage(3, 2))])
    whole = await role("answer", model, 2).ask(ASKED, (), ledger, on_delta=heard.append)
    assert "".join(delta.text for delta in heard) == whole.text == "a b"
    assert "".join(delta.reasoning for delta in heard) == "hm"
    assert [(call.outcome, call.usage) for call in ledger.calls] == [
        ("unavailable", None),
        ("completed", Usage(3, 2)),
    ]


async def test_what_is_cut_once_it_is_passed_on(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """Neither the model nor a fallback is asked again, be it the model or a fallback that is
    cut.
    """
    heard = list[Delta]()
    asked = role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL), 3)
    spare = replace(
        role("answer", ScriptedModel([])),
        fallbacks=(asked, role("answer", ScriptedModel(["never"]))),
    )
    for first in (replace(asked, fallbacks=(role("answer", ScriptedModel(["never"])),)), spare):
        openai_server.plays(streams(text_event("a")), says("a b"))
        ledger = Ledger()
        failing = replace(first, model=ScriptedModel([GARBLED])) if first is spare else first
        with pytest.raises(UpstreamUnavailable, match=r"^answer at .* cut before its end$"):
            await failing.ask(ASKED, (), ledger, on_delta=heard.append)
        await ledger.close(10)
        assert [call.outcome for call in ledger.calls] == ["protocol_error"] * (first is spare) + [
            "unavailable"
        ]
    assert [delta.text for delta in heard] == ["a", "a"]


async def test_a_reader_who_leaves(pool: ConnectionPool, openai_server: OpenAIServer) -> None:
    """Leaving early stops the engine; what it had counted by then is booked as a lower bound."""
    openai_server.plays(
        streams(text_event("a", {"prompt_tokens": 11, "completion_tokens": 2}), then=hang)
    )
    ledger = Ledger()
    heard = asyncio.Event()
    asked = role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL))
    asking = asyncio.create_task(asked.ask(ASKED, (), ledger, on_delta=lambda _delta: heard.set()))
    await heard.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await openai_server.sees_disconnect()
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
async def test_streaming_changes_nothing(
    pool: ConnectionPool, openai_server: OpenAIServer, behaviour: Behaviour
) -> None:
    """What a role says is the same whether its calls are streamed or not."""
    openai_server.plays(behaviour)
    streamed = role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL))
    said = [
        await one.ask(ASKED, ("</y>",), Ledger())
        for one in (streamed, replace(streamed, streams=False))
    ]
    assert said[0] == said[1]
    assert [body.get("stream", False) for body in openai_server.bodies] == [True, False]


async def test_streaming_a_scripted_model_changes_nothing() -> None:
    """So it is with the shipped double."""
    whole = Completion("a  b\n", "length", "hm", Usage(3, 2, 1, 1), overran=True)
    streamed = role("answer", ScriptedModel(lambda _: whole))
    for one in (streamed, replace(streamed, streams=False)):
        assert await one.ask(ASKED, (), Ledger()) == whole


async def test_a_call_that_is_cut(pool: ConnectionPool, openai_server: OpenAIServer) -> None:
    """A call that breaks off has the last usage that was reported, and a time to its first
    token.
    """
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
    """Where nothing was reported but text had come, the model's tokenizer counts; where it has
    none, nobody knows.
    """
    openai_server.plays(streams(text_event("two words")), fails(400, "no"))
    openai_server.tokenizes = True
    ledger = Ledger()
    asked = role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL), 2)
    with pytest.raises(UpstreamRefused):
        await asked.ask(ASKED, (), ledger)
    await ledger.close(10)
    assert [call.usage for call in ledger.calls] == [None, Usage(1, 2, estimated=True)]
    openai_server.plays(streams(text_event("two words")), fails(400, "no"))
    openai_server.tokenizes = False
    ledger = Ledger()
    with pytest.raises(UpstreamRefused):
        await asked.ask(ASKED, (), ledger)
    await ledger.close(10)
    assert [call.usage for call in ledger.calls] == [None, None]


async def test_who_calls_whom() -> None:
    """A row names the deployment, or else the endpoint; what it may write, which version it is,
    and what it costs.
    """
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
    for one in (plain, named):
        await one.ask(ASKED, (), ledger)
    first, second = ledger.calls
    assert (first.deployment, first.executor_version, first.nano_usd) == (
        "scripted://scripted",
        None,
        None,
    )
    assert (second.deployment, second.executor_version, second.nano_usd) == (
        "executor",
        "executor-000007",
        13_000,
    )
    assert (first.max_tokens, second.max_tokens) == (64, 64)
    assert (first.prompt_bound, second.prompt_bound) == (prompt_bound(ASKED), 20)


class Thrifty(NoJournal):
    """Keeps what was reserved, and refuses whatever is more than it allows."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.reserved = list[Amount]()

    async def open(self, call: OpenedCall) -> None:
        self.reserved.append(call.reserved)
        if call.reserved.tokens > self.most:
            raise QuotaExhausted("no more today", retry_after_s=60.0)


async def test_the_worst_case_is_reserved() -> None:
    """Of its prompt by its bytes, and of all that it may write; nothing where nothing is
    limited.
    """
    journal = Thrifty(10**6)
    asked = replace(
        role("answer", ScriptedModel(lambda _: "yes")), price=Price(prompt=1.0, completion=10.0)
    )
    await asked.ask(ASKED, (), Ledger(journal=journal))
    await asked.ask(ASKED, (), Ledger(journal=journal, limited=True))
    await replace(asked, context_tokens=100).ask(ASKED, (), Ledger(journal=journal, limited=True))
    bound = prompt_bound(ASKED)
    assert journal.reserved == [
        NOTHING,
        Amount(bound + 64, bound * 1000 + 64 * 10_000),
        Amount(100, 100 * 1000 + 64 * 10_000),
    ]


async def test_what_is_refused_by_bytes_is_counted() -> None:
    """Where the bound by bytes is too much, the model's tokenizer tells the exact figure, which
    is tried once.
    """
    asked = replace(role("answer", ScriptedModel(lambda _: "yes")), attempts=3)
    journal = Thrifty(65)
    assert (await asked.ask(ASKED, (), Ledger(journal=journal, limited=True))).text == "yes"
    assert [amount.tokens for amount in journal.reserved] == [prompt_bound(ASKED) + 64, 1 + 64]
    ledger = Ledger(journal=Thrifty(64), limited=True)
    with pytest.raises(QuotaExhausted) as refused:
        await asked.ask(ASKED, (), ledger)
    assert refused.value.retry_after_s == 60.0
    assert (ledger.calls, ledger.refusal) == ((), refused.value)


async def test_a_tokenizer_that_nobody_has(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """Where nothing but bytes can be counted, the bound by bytes decides, and nothing is sent."""
    asked = role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL))
    with pytest.raises(QuotaExhausted):
        await asked.ask(ASKED, (), Ledger(journal=Thrifty(65), limited=True))
    assert openai_server.bodies == []


async def test_retries_reserve_again() -> None:
    """What an attempt may have spent that nobody counted is spent, so that a retry may be too
    much.
    """
    budget = Budget(max_total_tokens=prompt_bound(ASKED) + 64 + 64)
    ledger = Ledger(allowance=Allowance(budget))
    with pytest.raises(BudgetExhausted, match=r"budget\.max_total_tokens"):
        await role("answer", ScriptedModel([down(), "yes"]), 2).ask(ASKED, (), ledger)
    assert [call.outcome for call in ledger.calls] == ["unavailable"]


async def test_rows_equal_requests(pool: ConnectionPool, openai_server: OpenAIServer) -> None:
    """There are as many rows as requests reached the engine, whatever became of them."""
    openai_server.plays(
        fails(503, "loading", "0"),
        fails(429, "slow down", "0"),
        says("yes"),
        fails(400, "no"),
        hang,
    )
    ledger = Ledger()
    asked = role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL), 3)
    await asked.ask(ASKED, (), ledger)
    with pytest.raises(UpstreamRefused):
        await asked.ask(ASKED, (), ledger)
    openai_server.received.clear()
    cancelled = asyncio.create_task(asked.ask(ASKED, (), ledger))
    await openai_server.received.wait()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
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
async def test_an_endpoint_that_stops_within_its_reasoning(
    pool: ConnectionPool, openai_server: OpenAIServer, behaviour: Behaviour, *, streams: bool
) -> None:
    """It is asked once more, which is booked, without the stop strings, and is never sent any
    again; the output ends at them all the same.
    """
    asked = replace(
        role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL)), streams=streams, attempts=1
    )
    ledger = Ledger()
    openai_server.plays(behaviour, says("<think>so</y></think>a</y>", " b"))
    for _ in range(2):
        assert (await asked.ask(ASKED, ("</y>",), ledger)).text == "a</y>"
    assert [body.get("stop") for body in openai_server.bodies] == [["</y>"], None, None]
    assert [(call.outcome, call.purpose) for call in ledger.calls] == [
        ("completed", "first"),
        ("completed", "retry"),
        ("completed", "first"),
    ]


async def test_a_refusal_is_booked_as_one(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """With its tokens; nobody is asked again."""
    openai_server.plays(says("No", finish_reason="content_filter"))
    ledger = Ledger()
    with pytest.raises(ContentRefused):
        await role("answer", OpenAIHTTP(pool, openai_server.base_url, MODEL)).ask(ASKED, (), ledger)
    (call,) = ledger.calls
    assert (call.outcome, call.usage) == ("content_refused", Usage(11, 7, 4, 3))
