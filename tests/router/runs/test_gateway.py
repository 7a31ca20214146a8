"""The gateway: what it refuses, and that every run is stored before anyone hears of it."""

import asyncio
from asyncio import Task
from typing import Any

import msgspec
import pytest

from router.errors import (
    BadRequest,
    OutOfTime,
    RequestIdTaken,
    RunCancelled,
    StoreFailed,
    UpstreamRefused,
)
from router.ledger import Budget, RunStart
from router.ledger.journal import Admitted, EarlierRun
from router.models import Completion, Delta, Message, ScriptedModel, Usage
from router.protocol import Vocabulary
from router.runs import Gateway, RequestOptions
from router.runs.gateway import AnswerRequest, CompletionRequest
from router.runs.lifecycle import RunRequest
from router.runs.live import LiveRuns
from router.search import Topology
from router.trace import Conversation, Event, Execution, Run, Trajectory
from router.trace.identity import DEFAULT_TENANT, SCOPES, Identity
from tests.router.clock import Clock, ended, with_clock
from tests.router.deployment import STOP, Deployment, HeldModel, Kept, block

QUESTION = "Who directed Heat?"
ASKED = CompletionRequest("answer", (Message("user", "hi"),), (), 0)


def asking(
    deployment: Deployment, store: Kept, options: RequestOptions | None = None, **settings: Any
) -> Task[Run]:
    """The answer to the question, once it is there."""
    return asyncio.create_task(
        deployment.gateway(store, **settings).answer(QUESTION, options or RequestOptions())
    )


def answering(**says: Any) -> tuple[Kept, HeldModel, Deployment]:
    """A store, and an answerer that is held until it is let, then says what it is to say."""
    model = HeldModel(ScriptedModel(says.pop("answers", ["<answer>Michael Mann</answer>"])))
    return Kept(), model, Deployment(answerer=model, **says)


async def test_a_finished_run_is_stored() -> None:
    """The run that is returned is the run that was stored: question, trajectory, settings and
    calls.
    """
    store = Kept()
    run = await Deployment().gateway(store).answer(f"  {QUESTION}\n", RequestOptions())
    assert store.runs == [run]
    assert (run.kind, run.request, run.status, run.error) == ("answer", QUESTION, "finished", "")
    assert isinstance(run.result, Trajectory)
    assert run.result.answer == "Michael Mann"
    assert [call.role for call in run.calls] == [
        "delegation",
        "execution",
        "execution",
        "delegation",
        "answer",
    ]
    assert {name: setting.model for name, setting in run.settings.items()} == {
        "delegation": "backbone",
        "execution": "small",
        "answer": "fixed",
    }


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ("", "question is empty"),
        (" \n\t", "question is empty"),
        ("x" * 11, "11 characters; at most 10"),
    ],
)
async def test_bad_questions(question: str, why: str) -> None:
    """What cannot be used is refused before anything is spent or stored."""
    store = Kept()
    model = ScriptedModel([])
    gateway = Deployment(model).gateway(store, max_question_chars=10)
    with pytest.raises(BadRequest, match=why):
        await gateway.answer(question, RequestOptions())
    with pytest.raises(BadRequest, match=why.replace("question", "sub_query")):
        await gateway.execute(question, RequestOptions())
    assert (store.runs, model.prompts) == ([], [])
    run = (
        await Deployment().gateway(max_question_chars=10).answer(f" {'x' * 10} ", RequestOptions())
    )
    assert run.status == "finished"  # space around a question does not count


@pytest.mark.parametrize("messages", [(), (Message("user", "hi"), Message("assistant", "hello"))])
async def test_bad_conversations(messages: tuple[Message, ...]) -> None:
    """A conversation must leave the next turn to the model."""
    with pytest.raises(BadRequest, match="must end with a message"):
        await (
            Deployment()
            .gateway()
            .complete(CompletionRequest("answer", messages, (), 0), RequestOptions())
        )


async def test_out_of_scope() -> None:
    """A question beyond the models' language is answered with what it was about, and no model
    is asked.
    """
    model = ScriptedModel([])
    store = Kept()
    gateway = Deployment(model).gateway(
        store, vocabulary=Vocabulary(["who", "wrote"], ["The Salt Road"])
    )
    run = await gateway.answer("Who directed Heat?", RequestOptions())
    assert isinstance(run.result, Trajectory)
    assert run.result.outcome == "out_of_scope"
    assert '"directed", "Heat"' in run.result.answer
    assert (model.prompts, run.calls, store.runs) == ([], (), [run])


async def test_in_scope() -> None:
    """A question within the scope goes its usual way."""
    run = (
        await Deployment()
        .gateway(vocabulary=Vocabulary(["who", "directed"], ["Heat"]))
        .answer(QUESTION, RequestOptions())
    )
    assert isinstance(run.result, Trajectory) and run.result.outcome == "answered"


async def test_a_store_that_fails_withholds_the_answer() -> None:
    """What is not on disk is not acknowledged."""
    store = Kept()
    store.full = True
    with pytest.raises(StoreFailed):
        await Deployment().gateway(store).answer(QUESTION, RequestOptions())


async def test_a_failed_run_is_stored_with_its_calls() -> None:
    """What was spent before the failure is on the books."""
    store = Kept()
    deployment = Deployment(answerer=ScriptedModel([UpstreamRefused("wrong key", endpoint="e")]))
    with pytest.raises(UpstreamRefused):
        await deployment.gateway(store).answer(QUESTION, RequestOptions())
    (run,) = store.runs
    assert (run.status, run.error) == ("failed", "UpstreamRefused: answer at e: wrong key")
    assert isinstance(run.result, Trajectory) and len(run.result.executions) == 1
    assert [call.outcome for call in run.calls] == [*["completed"] * 4, "refused"]


async def cancelled(answer: Task[Run]) -> None:
    """Cancel, and see that it was cancelled and nothing else."""
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ended(answer)


async def test_a_cancelled_run_is_stored_with_its_calls() -> None:
    """Cancelling stops the work upstream, and what it had spent is on the books."""
    store, model, deployment = answering()
    answer = asking(deployment, store)
    await ended(model.called.wait())
    await cancelled(answer)
    assert model.cancelled.is_set()
    (run,) = store.runs
    assert run.status == "cancelled"
    assert isinstance(run.result, Trajectory) and len(run.result.executions) == 1
    assert [call.outcome for call in run.calls] == [*["completed"] * 4, "cancelled"]


async def test_cancelling_cancels_every_executor() -> None:
    """Sub-queries that run side by side all stop, each with its row."""
    store = Kept()
    model = HeldModel(ScriptedModel([]))
    answer = asking(
        Deployment(ScriptedModel(['<search>["a?", "b?", "c?"]</search>']), model), store
    )
    await ended(model.called.wait())
    for _ in range(10):
        await asyncio.sleep(0)
    await cancelled(answer)
    assert [call.outcome for call in store.runs[0].calls] == ["completed", *["cancelled"] * 3]


@pytest.mark.parametrize("status", ["finished", "failed"])
async def test_a_run_that_is_cancelled_while_it_is_stored(status: str) -> None:
    """A write that has begun goes on to its end, though nobody waits for it any more."""
    store = Kept()
    store.let.clear()
    refuses = ScriptedModel([UpstreamRefused("wrong key", endpoint="e")])
    answer = asking(Deployment(refuses) if status == "failed" else Deployment(), store)
    await ended(store.asked.wait())
    answer.cancel()
    await asyncio.sleep(0)
    store.let.set()
    with pytest.raises(asyncio.CancelledError):
        await ended(answer)
    assert [(run.status, len(run.calls)) for run in store.runs] == [
        (status, 1 if status == "failed" else 5)
    ]


async def test_cancelling_stays_cancelling_when_the_store_fails() -> None:
    """A store that fails does not turn a cancelled request into a failed one."""
    store, model, deployment = answering()
    store.full = True
    answer = asking(deployment, store)
    await ended(model.called.wait())
    await cancelled(answer)


@pytest.mark.parametrize(("asked_s", "limit_s"), [(10.0, 120.0), (None, 10.0), (500.0, 10.0)])
def test_the_deadline(asked_s: float | None, limit_s: float) -> None:
    """A run ends before the client's deadline or the gateway's limit, whichever is sooner, in
    time to be stored.
    """

    async def main(clock: Clock) -> None:
        store, _, deployment = answering()
        answer = asking(deployment, store, RequestOptions(time_s=asked_s), timeout_s=limit_s)
        await clock.advance(9.4)
        assert not answer.done()
        await clock.advance(0.5)
        with pytest.raises(OutOfTime):
            await answer
        (run,) = store.runs
        assert (run.status, run.error.startswith("OutOfTime"), len(run.calls)) == (
            "failed",
            True,
            5,
        )

    with_clock(main)


async def test_a_deadline_that_has_passed() -> None:
    """No time at all is out of time, not a crash."""
    store = Kept()
    gateway = Deployment().gateway(store)
    with pytest.raises(OutOfTime):
        await ended(gateway.answer(QUESTION, RequestOptions(time_s=0.0)))
    await ended(gateway.settled())
    assert [run.status for run in store.runs] == ["failed"]


def test_a_store_that_takes_too_long() -> None:
    """Whoever asked hears of it in time, though the run is still being stored; it is under way
    until it is.
    """

    async def main(clock: Clock) -> None:
        store = Kept()
        live = LiveRuns()
        store.let.clear()
        gateway = Deployment().gateway(store, live=live)
        answer = asyncio.create_task(gateway.answer(QUESTION, RequestOptions(time_s=10.0)))
        await clock.advance(9.9)
        assert not answer.done()
        await clock.advance(0.1)
        with pytest.raises(OutOfTime, match=r"while run run-[0-9a-f]+ was stored"):
            answer.result()
        (run_id,) = store.starts
        assert live.find(run_id) is not None
        store.let.set()
        await gateway.settled()
        await clock.settle()
        assert live.find(run_id) is None
        assert [(run.id, run.status) for run in store.runs] == [(run_id, "finished")]

    with_clock(main)


def test_a_store_that_fails_too_late(capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody waits for any more is told to the operator."""

    async def main(clock: Clock) -> None:
        store = Kept()
        store.full = True
        store.let.clear()
        gateway = Deployment().gateway(store)
        answering = asyncio.create_task(gateway.answer(QUESTION, RequestOptions(time_s=10.0)))
        await clock.advance(10.0)
        assert isinstance(answering.exception(), OutOfTime)
        store.let.set()
        await gateway.settled()
        assert "run.not_stored" in capsys.readouterr().out

    with_clock(main)


async def test_execute() -> None:
    """One sub-query is a run of its own."""
    store = Kept()
    run = await Deployment().gateway(store).execute(QUESTION, RequestOptions())
    assert isinstance(run.result, Execution)
    assert (run.kind, run.request, run.result.outcome) == ("execute", QUESTION, "reported")
    assert {call.sub_query_index for call in run.calls} == {0}
    assert store.runs == [run]


async def test_complete() -> None:
    """One call to a role's model is a run of its own; the role's system prompt is not added."""
    store = Kept()
    model = ScriptedModel(["a</x>b"])
    request = CompletionRequest(
        "answer", (Message("system", "be"), Message("user", "hi")), ("</x>",), 7
    )
    run = await Deployment(answerer=model).gateway(store).complete(request, RequestOptions())
    assert isinstance(run.result, Conversation)
    assert (run.kind, run.request, run.result.outputs[0].text) == ("complete", "hi", "a</x>")
    assert model.prompts[0].messages == request.messages
    assert (model.prompts[0].stop, model.prompts[0].sampling.max_tokens) == (("</x>",), 7)
    assert store.runs == [run]


async def test_complete_streamed() -> None:
    """What is passed on piece by piece is what is stored."""
    store = Kept()
    sent = list[Delta]()
    written = Completion("a b c", "stop", "hm", Usage(3, 3), overran=True)
    model = ScriptedModel([written])
    run = (
        await Deployment(answerer=model)
        .gateway(store)
        .complete(ASKED, RequestOptions(), sent.append)
    )
    assert isinstance(run.result, Conversation)
    assert run.result.outputs == (written,)
    assert "".join(delta.text for delta in sent) == "a b c"
    assert [call.usage for call in store.runs[0].calls] == [Usage(3, 3)]


async def test_a_stream_that_is_cancelled() -> None:
    """The call is booked and the run stored, however far it came."""
    store = Kept()
    model = HeldModel(ScriptedModel(["a b c"]))
    sent = list[Delta]()
    running = asyncio.create_task(
        Deployment(answerer=model).gateway(store).complete(ASKED, RequestOptions(), sent.append)
    )
    await ended(model.called.wait())
    await cancelled(running)
    assert [delta.text for delta in sent] == ["a"]
    assert [call.outcome for call in store.runs[0].calls] == ["cancelled"]


NAMED = RequestOptions(request_id="once")


async def test_a_repeated_request_spends_nothing() -> None:
    """The second request of a name gets the first one's run, its events included, and no model
    is asked.
    """
    store = Kept()
    model = ScriptedModel([block(QUESTION), STOP])
    first = list[Event]()
    second = list[Event]()
    gateway = Deployment(model).gateway(store)
    run = await gateway.answer(QUESTION, NAMED, first.append)
    again = await gateway.answer(QUESTION, NAMED, second.append)
    assert (again, second) == (run, first)
    assert (len(model.prompts), len(store.runs)) == (2, 1)


@pytest.mark.parametrize("stored", [["finished"], ["cancelled", "finished"]])
async def test_a_request_that_is_repeated_while_it_runs(stored: list[str]) -> None:
    """The second waits for the first; where that comes to nothing, it begins anew."""
    store, model, deployment = answering(
        delegator=ScriptedModel([block(QUESTION), STOP] * 2),
        answers=["<answer>Michael Mann</answer>"] * 2,
    )
    gateway = deployment.gateway(store)
    first = asyncio.create_task(gateway.answer(QUESTION, NAMED))
    await ended(model.called.wait())
    second = asyncio.create_task(gateway.answer(QUESTION, NAMED))
    await asyncio.sleep(0)
    if stored[0] == "cancelled":
        await cancelled(first)
    model.let.set()
    again = await ended(second)
    assert again.status == "finished"
    assert [run.status for run in store.runs] == stored
    assert first.cancelled() or await first is again


async def test_a_request_that_is_repeated_while_it_fails_elsewhere() -> None:
    """Whoever waits for it begins anew, also where the texts of runs are not kept."""
    store = Kept()
    fingerprint = RunRequest("answer", QUESTION, AnswerRequest(QUESTION)).fingerprint
    await store.begin(
        RunStart("run-1", "answer", DEFAULT_TENANT, "", "once", QUESTION, fingerprint, 0.0)
    )
    asking = asyncio.create_task(Deployment().gateway(store).answer(QUESTION, NAMED))
    await asyncio.sleep(0)
    store.runs.append(
        Run("run-1", "answer", "", "failed", "", None, {}, (), 0.0, 1.0, redacted=True)
    )
    assert (await ended(asking)).status == "finished"


async def test_waiting_for_a_run_ends_with_the_deadline() -> None:
    """Whoever waits has a deadline of its own, and the run goes on without it."""
    store, model, deployment = answering()
    gateway = deployment.gateway(store)
    first = asyncio.create_task(gateway.answer(QUESTION, NAMED))
    await ended(model.called.wait())
    with pytest.raises(OutOfTime, match="before anything began"):
        await ended(gateway.answer(QUESTION, RequestOptions(request_id="once", time_s=0.05)))
    model.let.set()
    assert (await ended(first)).status == "finished"


async def test_a_name_that_is_used_twice() -> None:
    """A name belongs to one request: the same name for something else is refused, and tenants
    do not share names.
    """
    gateway = Deployment(ScriptedModel(lambda _: "<stop>")).gateway()
    run = await gateway.answer(QUESTION, NAMED)
    with pytest.raises(RequestIdTaken, match=f"run {run.id}"):
        await gateway.answer("Who wrote Heat?", NAMED)
    with pytest.raises(RequestIdTaken):
        await gateway.execute(QUESTION, NAMED)
    other = RequestOptions(Identity("other", SCOPES), request_id="once")
    assert (await gateway.answer("Who wrote Heat?", other)).id != run.id


async def test_a_run_that_somebody_cancels() -> None:
    """Its client hears why; the run is stored as cancelled, with what it had spent."""
    store, model, deployment = answering()
    live = LiveRuns()
    answer = asking(deployment, store, live=live)
    await ended(model.called.wait())
    (run_id,) = store.starts
    live.cancel(run_id)
    with pytest.raises(RunCancelled, match=run_id):
        await ended(answer)
    assert [(run.status, len(run.calls)) for run in store.runs] == [("cancelled", 5)]
    assert not answer.cancelling()


async def test_a_run_that_somebody_cancels_while_it_is_stored() -> None:
    """That is too late: the answer goes out."""
    store = Kept()
    live = LiveRuns()
    store.let.clear()
    answer = asking(Deployment(), store, live=live)
    await ended(store.asked.wait())
    live.cancel(next(iter(store.starts)))
    await asyncio.sleep(0)
    store.let.set()
    assert (await ended(answer)).status == "finished"


async def test_money_needs_prices() -> None:
    """A limit in money is refused where a price is unknown, before anything is spent."""
    store = Kept()
    with pytest.raises(BadRequest, match=r'\[prices."backbone"\]'):
        await (
            Deployment()
            .gateway(store)
            .answer(QUESTION, RequestOptions(budget=Budget(max_nano_usd=1)))
        )
    assert not store.starts


async def test_who_hears_of_an_answer_and_when() -> None:
    """Once it is stored, and of no answer that was given before."""
    store = Kept()
    heard = list[Run]()
    gateway = Deployment().gateway(store, on_answered=lambda run: heard.append(store.runs[-1]))
    run = await gateway.answer(QUESTION, RequestOptions(request_id="mine"))
    await gateway.answer(QUESTION, RequestOptions(request_id="mine"))
    assert heard == [run]


class Redacting(Kept):
    """A store of a tenant whose texts are not kept."""

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        await super().begin(start)
        return Admitted(redact=True)


async def test_nobody_hears_of_anything_else() -> None:
    """Failed answers, reports, completions, and answers that must not be kept."""
    heard: list[Run] = []
    refused = ScriptedModel([UpstreamRefused("wrong key", endpoint="e")])
    with pytest.raises(UpstreamRefused):
        await (
            Deployment(refused).gateway(on_answered=heard.append).answer(QUESTION, RequestOptions())
        )
    gateway = Deployment().gateway(on_answered=heard.append)
    await gateway.execute(QUESTION, RequestOptions())
    await gateway.complete(ASKED, RequestOptions())
    await (
        Deployment()
        .gateway(Redacting(), on_answered=heard.append)
        .answer(QUESTION, RequestOptions())
    )
    assert heard == []


class Interrupted(Kept):
    """A journal with one interrupted run."""

    def __init__(self, start: RunStart) -> None:
        super().__init__()
        self.start = start

    def unfinished(self, run_id: str) -> Any:
        return self.start if run_id == self.start.id else None


async def test_a_resumed_answer_gets_the_whole_request() -> None:
    """All of its fields are on record, and they are what is asked again."""

    def hosting(store: Kept) -> Gateway:
        deployment = Deployment()
        host = Topology(deployment.search(topology="host"), deployment.roles())
        return deployment.gateway(store, topologies={"host": host})

    store = Kept()
    await hosting(store).answer(QUESTION, RequestOptions(), topology="host")
    (start,) = store.starts.values()
    interrupted = Interrupted(msgspec.structs.replace(start, request="shortened", topology=""))
    resumed = await hosting(interrupted).answer("", RequestOptions(resume=start.id))
    assert resumed.request == QUESTION
    assert isinstance(resumed.result, Trajectory)
    assert resumed.result.topology == "host"
