"""A role: which failures are worth another attempt, and that every attempt is booked."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import aiohttp
import pytest

from router.errors import UpstreamError, UpstreamGarbled, UpstreamRefused, UpstreamUnavailable
from router.ledger import Ledger
from router.model import Completion, Message, Usage
from router.openai_http import OpenAIHTTP
from router.scripted_model import ScriptedModel
from tests.router.clock import Clock, with_clock
from tests.router.deployment import HeldModel, role
from tests.router.openai_server import MODEL, OpenAIServer, fails, hang, hang_on, says, streams, text_event

ASKED = (Message("user", "hi"),)
REFUSED = UpstreamRefused("wrong key", endpoint="e")
GARBLED = UpstreamGarbled("not JSON", endpoint="e")


def down(retry_after_s: float | None = 0.0) -> UpstreamUnavailable:
    """An endpoint that is not there for now."""
    return UpstreamUnavailable("overloaded", endpoint="e", retry_after_s=retry_after_s)


async def test_opening() -> None:
    """A conversation opens with the role's own prompt."""
    assert role("answer", ScriptedModel([])).opening("hi") == (Message("system", "answer"), Message("user", "hi"))


async def test_one_call_one_row() -> None:
    """A call that goes well is one attempt."""
    ledger = Ledger()
    model = ScriptedModel([Completion("yes", "stop", usage=Usage(3, 1))])
    completion = await role("execution", model, 3).ask(ASKED, (), ledger, purpose="correction", sub_query=4)
    assert completion.text == "yes"
    (call,) = ledger.calls
    assert (call.purpose, call.attempt, call.sub_query, call.usage) == ("correction", 1, 4, Usage(3, 1))


async def test_what_is_unavailable_is_tried_again() -> None:
    """Each attempt has its row, and attempts after the first are retries, whatever the first was for."""
    ledger = Ledger()
    model = ScriptedModel([down(), down(), "yes"])
    await role("answer", model, 3).ask(ASKED, (), ledger, purpose="correction")
    assert [(call.purpose, call.attempt, call.outcome) for call in ledger.calls] == [
        ("correction", 1, "unavailable"),
        ("retry", 2, "unavailable"),
        ("retry", 3, "completed"),
    ]
    assert len(set(model.prompts)) == 1


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
    assert [call.outcome for call in ledger.calls] == ["refused" if error is REFUSED else "garbled"]


def test_retry_after_is_honoured() -> None:
    """An endpoint that asks to be left alone for seven seconds is left alone for seven seconds."""

    async def main(clock: Clock) -> None:
        model = ScriptedModel([down(7.0), "yes"])
        asking = asyncio.create_task(role("answer", model, 2).ask(ASKED, (), Ledger()))
        await clock.advance(6.9)
        assert len(model.prompts) == 1
        await clock.advance(0.2)
        assert (await asking).text == "yes"

    with_clock(main)


def test_the_longest_wait() -> None:
    """Half a minute is waited for; who asks for more is not waited for at all, so that a caller can go elsewhere."""

    async def main(clock: Clock) -> None:
        model = ScriptedModel([down(30.0), "yes"])
        asking = asyncio.create_task(role("answer", model, 2).ask(ASKED, (), Ledger()))
        await clock.advance(29.9)
        assert len(model.prompts) == 1
        await clock.advance(0.2)
        assert (await asking).text == "yes"
        with pytest.raises(UpstreamUnavailable):
            await role("answer", ScriptedModel([down(30.1), "yes"]), 2).ask(ASKED, (), Ledger())

    with_clock(main)


def test_a_retry_after_of_zero_means_now() -> None:
    """Zero is an answer, not the lack of one."""

    async def main(clock: Clock) -> None:
        asking = asyncio.create_task(role("answer", ScriptedModel([down(0.0), "yes"]), 2).ask(ASKED, (), Ledger()))
        await clock.settle()
        assert asking.done()

    with_clock(main)


def test_without_retry_after_the_pause_is_short_and_bounded() -> None:
    """The pauses grow, but never beyond eight seconds."""

    async def main(clock: Clock) -> None:
        model = ScriptedModel([*[down(None)] * 9, "yes"])
        asking = asyncio.create_task(role("answer", model, 10).ask(ASKED, (), Ledger()))
        for attempts in range(1, 10):
            await clock.settle()
            assert attempts <= len(model.prompts)
            await clock.advance(8.0)
        assert (await asking).text == "yes"

    with_clock(main)


async def test_cancelling_is_booked() -> None:
    """A call that is cancelled has its row too."""
    ledger, model = Ledger(), HeldModel(ScriptedModel(["yes"]))
    asking = asyncio.create_task(role("answer", model, 3).ask(ASKED, (), ledger))
    await model.called.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [call.outcome for call in ledger.calls] == ["cancelled"]


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
    """What the system says is sent in the user's turn, whole or streamed; the conversation stays as it is."""
    model = ScriptedModel(["a", "b"])
    asked = replace(role("answer", model), system_role=False)
    opening = asked.opening("hi")
    await asked.ask(opening, (), Ledger())
    assert [delta.text async for delta in asked.stream(opening, (), Ledger())]
    assert opening == (Message("system", "answer"), Message("user", "hi"))
    assert {prompt.messages for prompt in model.prompts} == {(Message("user", "answer\n\nhi"),)}


async def test_a_stream_is_booked_at_its_end() -> None:
    """A stream that is read to its end has one row with the final usage."""
    ledger = Ledger()
    model = ScriptedModel([Completion("a b", "stop", "hm", Usage(3, 2))])
    deltas = [delta async for delta in role("answer", model).stream(ASKED, (), ledger)]
    assert "".join(delta.text for delta in deltas) == "a b"
    assert "".join(delta.reasoning for delta in deltas) == "hm"
    assert [(call.outcome, call.usage, call.lower_bound) for call in ledger.calls] == [
        ("completed", Usage(3, 2), False)
    ]


async def test_a_stream_that_fails_names_its_role() -> None:
    """A stream has one attempt, because some of it may have been passed on."""
    ledger = Ledger()
    with pytest.raises(UpstreamUnavailable, match=r"^answer at e"):
        async for _ in role("answer", ScriptedModel([down(), "yes"]), 3).stream(ASKED, (), ledger):
            pass
    assert [call.outcome for call in ledger.calls] == ["unavailable"]


async def test_a_stream_that_the_reader_leaves(session: aiohttp.ClientSession, openai_server: OpenAIServer) -> None:
    """Leaving early stops the engine; what it had counted by then is booked as a lower bound."""
    counted = {"prompt_tokens": 11, "completion_tokens": 2}
    openai_server.plays(streams(text_event("a", counted), then=hang_on))
    ledger = Ledger()
    model = OpenAIHTTP(session, openai_server.base_url, MODEL)
    async with aclosing(role("answer", model).stream(ASKED, (), ledger)) as deltas:
        assert (await anext(deltas)).text == "a"
    await openai_server.sees_disconnect()
    (call,) = ledger.calls
    assert (call.outcome, call.usage, call.lower_bound) == ("cancelled", Usage(11, 2), True)


async def test_rows_equal_requests(session: aiohttp.ClientSession, openai_server: OpenAIServer) -> None:
    """There are as many rows as requests reached the engine, whatever became of them."""
    openai_server.plays(fails(503, "loading", "0"), fails(429, "slow down", "0"), says("yes"), fails(400, "no"), hang)
    ledger = Ledger()
    asked = role("answer", OpenAIHTTP(session, openai_server.base_url, MODEL), 3)
    await asked.ask(ASKED, (), ledger)
    with pytest.raises(UpstreamRefused):
        await asked.ask(ASKED, (), ledger)
    openai_server.received.clear()
    cancelled = asyncio.create_task(asked.ask(ASKED, (), ledger))
    await openai_server.received.wait()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    outcomes = [call.outcome for call in ledger.calls]
    assert outcomes == ["unavailable", "unavailable", "completed", "refused", "cancelled"]
    assert len(openai_server.bodies) == len(ledger.calls)
