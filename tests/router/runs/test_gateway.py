"""The gateway: the requests that it refuses, and that a run is stored before the client gets it."""

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
from router.models import Completion, Delta, Message, Usage
from router.protocol import Vocabulary
from router.runs import Gateway, RequestOptions
from router.runs.gateway import AnswerRequest, CompletionRequest
from router.runs.lifecycle import RunRequest
from router.runs.live import LiveRuns
from router.search import Topology
from router.trace import Conversation, Event, Execution, Run, Trajectory
from router.trace.identity import DEFAULT_TENANT, SCOPES, Identity
from router.trace.scope import DEFAULT_SCOPE
from tests.router.clock import Clock, ended, with_clock
from tests.router.deployment import STOP, Deployment, HeldModel, Kept, block
from tests.scripted_model import ScriptedModel

QUESTION = "Who directed Heat?"
ASKED = CompletionRequest("answer", (Message("user", "hi"),), (), 0)


def asking(
    deployment: Deployment, store: Kept, options: RequestOptions | None = None, **settings: Any
) -> Task[Run]:
    """Start to answer the question."""
    return asyncio.create_task(
        deployment.gateway(store, **settings).answer(QUESTION, options or RequestOptions())
    )


def answering(**says: Any) -> tuple[Kept, HeldModel, Deployment]:
    """Return a store, a held answerer, and their deployment."""
    model = HeldModel(ScriptedModel(says.pop("answers", ["<answer>Michael Mann</answer>"])))
    return Kept(), model, Deployment(answerer=model, **says)


async def test_a_finished_run_is_stored() -> None:
    """The returned run and the stored run are equal in question, trajectory, settings and calls."""
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
async def test_a_bad_question_is_refused_before_anything_is_spent(question: str, why: str) -> None:
    """Nothing is stored either. White space around a question does not count."""
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
    assert run.status == "finished"


@pytest.mark.parametrize("messages", [(), (Message("user", "hi"), Message("assistant", "hello"))])
async def test_a_conversation_must_leave_the_next_turn_to_the_model(
    messages: tuple[Message, ...],
) -> None:
    with pytest.raises(BadRequest, match="must end with a message"):
        await (
            Deployment()
            .gateway()
            .complete(CompletionRequest("answer", messages, (), 0), RequestOptions())
        )


async def test_a_question_out_of_scope_is_answered_without_a_model() -> None:
    """The answer names the unknown words."""
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


async def test_a_question_in_scope_is_searched_for() -> None:
    run = (
        await Deployment()
        .gateway(vocabulary=Vocabulary(["who", "directed"], ["Heat"]))
        .answer(QUESTION, RequestOptions())
    )
    assert isinstance(run.result, Trajectory) and run.result.outcome == "answered"


async def test_an_answer_that_cannot_be_stored_is_withheld() -> None:
    store = Kept()
    store.full = True
    with pytest.raises(StoreFailed):
        await Deployment().gateway(store).answer(QUESTION, RequestOptions())


async def test_a_failed_run_is_stored_with_its_calls() -> None:
    """The calls before the failure are on the books."""
    store = Kept()
    deployment = Deployment(answerer=ScriptedModel([UpstreamRefused("wrong key", endpoint="e")]))
    with pytest.raises(UpstreamRefused):
        await deployment.gateway(store).answer(QUESTION, RequestOptions())
    (run,) = store.runs
    assert (run.status, run.error) == ("failed", "UpstreamRefused: answer at e: wrong key")
    assert isinstance(run.result, Trajectory) and len(run.result.executions) == 1
    assert [call.outcome for call in run.calls] == [*["completed"] * 4, "refused"]


async def cancelled(answer: Task[Run]) -> None:
    """Cancel the answer and expect nothing but the cancellation."""
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ended(answer)


async def test_a_cancelled_run_is_stored_with_its_calls() -> None:
    """The work upstream stops, and the calls so far are on the books."""
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
    """Parallel sub-queries all stop, each with its row."""
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
async def test_a_run_that_is_cancelled_while_it_is_stored_is_still_stored(status: str) -> None:
    """A write that has begun is completed, even if no client waits for it."""
    store = Kept()
    store.let.clear()
    refuses = ScriptedModel([UpstreamRefused("wrong key", endpoint="e")])
    deployment = Deployment(refuses) if status == "failed" else Deployment()
    answer = asking(deployment, store)
    await ended(store.asked.wait())
    answer.cancel()
    await asyncio.sleep(0)
    store.let.set()
    with pytest.raises(asyncio.CancelledError):
        await ended(answer)
    assert [(run.status, len(run.calls)) for run in store.runs] == [
        (status, 1 if status == "failed" else 5)
    ]


async def test_a_cancelled_request_stays_cancelled_when_the_store_fails() -> None:
    store, model, deployment = answering()
    store.full = True
    answer = asking(deployment, store)
    await ended(model.called.wait())
    await cancelled(answer)


@pytest.mark.parametrize(("deadline_s", "limit_s"), [(10.0, 120.0), (None, 10.0), (500.0, 10.0)])
def test_a_run_ends_before_the_earlier_of_deadline_and_limit(
    deadline_s: float | None, limit_s: float
) -> None:
    """The client's deadline and the gateway's limit both leave time to store the run."""

    async def main(clock: Clock) -> None:
        store, _, deployment = answering()
        answer = asking(deployment, store, RequestOptions(time_s=deadline_s), timeout_s=limit_s)
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


async def test_a_deadline_that_has_passed_is_out_of_time() -> None:
    store = Kept()
    gateway = Deployment().gateway(store)
    with pytest.raises(OutOfTime):
        await ended(gateway.answer(QUESTION, RequestOptions(time_s=0.0)))
    await ended(gateway.settled())
    assert [run.status for run in store.runs] == ["failed"]


def test_a_slow_store_does_not_delay_the_client_past_its_deadline() -> None:
    """The run stays live until it is stored."""

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


def test_a_store_that_fails_after_the_deadline_is_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The operator is notified, since no client waits any more."""

    async def main(clock: Clock) -> None:
        store = Kept()
        store.full = True
        store.let.clear()
        gateway = Deployment().gateway(store)
        answer = asyncio.create_task(gateway.answer(QUESTION, RequestOptions(time_s=10.0)))
        await clock.advance(10.0)
        assert isinstance(answer.exception(), OutOfTime)
        store.let.set()
        await gateway.settled()
        assert "run.not_stored" in capsys.readouterr().out

    with_clock(main)


async def test_a_sub_query_is_a_run() -> None:
    store = Kept()
    run = await Deployment().gateway(store).execute(QUESTION, RequestOptions())
    assert isinstance(run.result, Execution)
    assert (run.kind, run.request, run.result.outcome) == ("execute", QUESTION, "reported")
    assert {call.sub_query_index for call in run.calls} == {0}
    assert store.runs == [run]


async def test_a_completion_is_a_run_without_the_role_s_system_prompt() -> None:
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


async def test_a_streamed_completion_is_stored_as_it_was_sent() -> None:
    store = Kept()
    deltas = list[Delta]()
    completion = Completion("a b c", "stop", "hm", Usage(3, 3), overran=True)
    model = ScriptedModel([completion])
    run = (
        await Deployment(answerer=model)
        .gateway(store)
        .complete(ASKED, RequestOptions(), deltas.append)
    )
    assert isinstance(run.result, Conversation)
    assert run.result.outputs == (completion,)
    assert "".join(delta.text for delta in deltas) == "a b c"
    assert [call.usage for call in store.runs[0].calls] == [Usage(3, 3)]


async def test_a_cancelled_stream_is_booked_and_stored() -> None:
    store = Kept()
    model = HeldModel(ScriptedModel(["a b c"]))
    deltas = list[Delta]()
    stream = asyncio.create_task(
        Deployment(answerer=model).gateway(store).complete(ASKED, RequestOptions(), deltas.append)
    )
    await ended(model.called.wait())
    await cancelled(stream)
    assert [delta.text for delta in deltas] == ["a"]
    assert [call.outcome for call in store.runs[0].calls] == ["cancelled"]


NAMED = RequestOptions(request_id="once")


async def test_a_repeated_request_spends_nothing() -> None:
    """A repeated request gets the first one's run and events, and no model is called."""
    store = Kept()
    model = ScriptedModel([block(QUESTION), STOP])
    events = list[Event]()
    repeated_events = list[Event]()
    gateway = Deployment(model).gateway(store)
    run = await gateway.answer(QUESTION, NAMED, events.append)
    repeated = await gateway.answer(QUESTION, NAMED, repeated_events.append)
    assert (repeated, repeated_events) == (run, events)
    assert (len(model.prompts), len(store.runs)) == (2, 1)


@pytest.mark.parametrize("stored", [["finished"], ["cancelled", "finished"]])
async def test_a_request_that_is_repeated_while_it_runs_waits_for_the_first(
    stored: list[str],
) -> None:
    """If the first is cancelled, the second starts again."""
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
    repeated_run = await ended(second)
    assert repeated_run.status == "finished"

    assert [kept.status for kept in store.runs] == stored
    assert first.cancelled() or await first is repeated_run


@pytest.mark.parametrize("redact", [False, True])
async def test_a_request_that_waits_for_a_run_is_cancelled_with_it(*, redact: bool) -> None:
    """If somebody has cancelled the run; a later request with the same name starts again."""
    store, model, deployment = answering(
        delegator=ScriptedModel([block(QUESTION), STOP] * 2),
        answers=["<answer>Michael Mann</answer>"] * 2,
    )
    live = LiveRuns()
    gateway = deployment.gateway(store, live=live)
    requests = [asyncio.create_task(gateway.answer(QUESTION, NAMED))]
    await ended(model.called.wait())
    requests.append(asyncio.create_task(gateway.answer(QUESTION, NAMED)))
    await asyncio.sleep(0)
    (run_id,) = store.starts
    store.redact = redact
    live.cancel(run_id)
    for request in requests:
        with pytest.raises(RunCancelled, match=run_id):
            await ended(request)
    model.let.set()
    store.redact = False
    assert (await ended(gateway.answer(QUESTION, NAMED))).status == "finished"


async def test_a_repeated_request_starts_again_after_a_failure_elsewhere() -> None:
    """Holds also if the texts of runs are not kept."""
    store = Kept()
    fingerprint = RunRequest("answer", QUESTION, AnswerRequest(QUESTION)).fingerprint(DEFAULT_SCOPE)
    await store.begin(
        RunStart("run-1", "answer", DEFAULT_TENANT, "", "once", QUESTION, fingerprint, 0.0)
    )
    repeated = asyncio.create_task(Deployment().gateway(store).answer(QUESTION, NAMED))
    await asyncio.sleep(0)
    store.runs.append(
        Run("run-1", "answer", "", "failed", "", None, {}, (), 0.0, 1.0, redacted=True)
    )
    assert (await ended(repeated)).status == "finished"


async def test_waiting_for_a_run_ends_with_the_deadline() -> None:
    """The waiting request has its own deadline, and the run continues without it."""
    store, model, deployment = answering()
    gateway = deployment.gateway(store)
    first = asyncio.create_task(gateway.answer(QUESTION, NAMED))
    await ended(model.called.wait())
    with pytest.raises(OutOfTime, match="before the run could begin"):
        await ended(gateway.answer(QUESTION, RequestOptions(request_id="once", time_s=0.05)))
    model.let.set()
    assert (await ended(first)).status == "finished"


async def test_a_request_id_belongs_to_one_request_of_its_tenant() -> None:
    """Another request with this id is refused; another tenant may use it."""
    gateway = Deployment(ScriptedModel(lambda _: "<stop>")).gateway()
    run = await gateway.answer(QUESTION, NAMED)
    with pytest.raises(RequestIdTaken, match=f"run {run.id}"):
        await gateway.answer("Who wrote Heat?", NAMED)
    with pytest.raises(RequestIdTaken):
        await gateway.execute(QUESTION, NAMED)
    of_other_tenant = RequestOptions(Identity("other", SCOPES), request_id="once")
    assert (await gateway.answer("Who wrote Heat?", of_other_tenant)).id != run.id


async def test_a_client_whose_run_is_cancelled_is_notified() -> None:
    """The run is stored as cancelled, with its calls."""
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


async def test_a_run_cannot_be_cancelled_while_it_is_stored() -> None:
    """The client gets its answer."""
    store = Kept()
    live = LiveRuns()
    store.let.clear()
    answer = asking(Deployment(), store, live=live)
    await ended(store.asked.wait())
    live.cancel(next(iter(store.starts)))
    await asyncio.sleep(0)
    store.let.set()
    assert (await ended(answer)).status == "finished"


async def test_a_limit_in_money_needs_all_prices() -> None:
    """Without a price, the request is refused before anything is spent."""
    store = Kept()
    with pytest.raises(BadRequest, match=r'\[prices."backbone"\]'):
        await (
            Deployment()
            .gateway(store)
            .answer(QUESTION, RequestOptions(budget=Budget(max_nano_usd=1)))
        )
    assert not store.starts


async def test_a_listener_is_notified_of_an_answer_once_it_is_stored() -> None:
    """A repeated answer is not reported again."""
    store = Kept()
    stored_when_notified = list[Run]()
    gateway = Deployment().gateway(
        store, on_answered=lambda run: stored_when_notified.append(store.runs[-1])
    )
    run = await gateway.answer(QUESTION, RequestOptions(request_id="mine"))
    await gateway.answer(QUESTION, RequestOptions(request_id="mine"))
    assert stored_when_notified == [run]


class Redacting(Kept):
    """A store of a tenant whose texts are redacted."""

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        await super().begin(start)
        return Admitted(redact=True)


async def test_a_listener_is_notified_of_answers_alone() -> None:
    """Failed answers, reports, completions and redacted answers are not reported."""
    reported: list[Run] = []
    refused = ScriptedModel([UpstreamRefused("wrong key", endpoint="e")])
    with pytest.raises(UpstreamRefused):
        await (
            Deployment(refused)
            .gateway(on_answered=reported.append)
            .answer(QUESTION, RequestOptions())
        )
    gateway = Deployment().gateway(on_answered=reported.append)
    await gateway.execute(QUESTION, RequestOptions())
    await gateway.complete(ASKED, RequestOptions())
    await (
        Deployment()
        .gateway(Redacting(), on_answered=reported.append)
        .answer(QUESTION, RequestOptions())
    )
    assert reported == []


class Interrupted(Kept):
    """A journal with one interrupted run."""

    def __init__(self, start: RunStart) -> None:
        super().__init__()
        self.start = start

    def unfinished(self, run_id: str) -> Any:
        return self.start if run_id == self.start.id else None


async def test_a_resumed_answer_gets_the_whole_request() -> None:
    """All fields of the request are recorded and used again."""

    def hosting(store: Kept) -> Gateway:
        deployment = Deployment()
        host = Topology(deployment.search(topology="host"), deployment.roles())
        return deployment.gateway(store, topologies={"host": host})

    store = Kept()
    await hosting(store).answer(AnswerRequest(QUESTION, "host"), RequestOptions())
    (start,) = store.starts.values()
    interrupted = Interrupted(msgspec.structs.replace(start, request="shortened", topology=""))
    resumed = await hosting(interrupted).answer("", RequestOptions(resume=start.id))
    assert resumed.request == QUESTION
    assert isinstance(resumed.result, Trajectory)
    assert resumed.result.topology == "host"
