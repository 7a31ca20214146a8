"""The answer is passed on while it is written, and what was passed on is what is stored."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rolegate.client.text import model_markdown

from router.edge.rendering import AnswerText
from router.errors import UpstreamUnavailable
from router.models import Completion, Delta, OnDelta, Prompt, Usage
from router.protocol.turns import parse_answer
from router.runs import RequestOptions
from router.runs.gateway import AnswerRequest
from router.search.answer_stream import AnswerStream
from router.trace.values import NOT_FOUND, AnswerDelta
from tests.router.deployment import Deployment

QUESTION = "Who directed Heat?"
PIECES = st.lists(
    st.sampled_from(["<answer>", "</answer>", "a", " ", "  \n", "&amp;", "&", "<b>", "not found"]),
    max_size=12,
)


class Shown:
    """A client that applies each part of an answer."""

    def __init__(self) -> None:
        self.text = ""
        self.texts = list[str]()

    def __call__(self, kept_chars: int, text: str) -> None:
        assert 0 <= kept_chars <= len(self.text)
        self.text = self.text[:kept_chars] + text
        self.texts.append(self.text)


@given(PIECES)
def test_the_last_text_is_the_answer_however_the_output_arrives(pieces: Sequence[str]) -> None:
    shown = Shown()
    stream = AnswerStream(shown)
    read = stream.attempt()
    for piece in pieces:
        read(piece)
    answer = parse_answer("".join(pieces))
    stream.show(answer, last=True)
    assert shown.text == answer


def test_an_answer_only_grows() -> None:
    shown = Shown()
    read = AnswerStream(shown).attempt()
    for character in "Well. <answer> Michael &amp; Mann,\n 1943 </answer> and so on":
        read(character)
    assert shown.text == "Michael & Mann, 1943"
    assert all(shown.text.startswith(text) for text in shown.texts)
    assert len(shown.texts) > 10


@pytest.mark.parametrize(
    "output",
    [
        "<answer>Not found",
        "<answer>Not found in the reports.",
        "<answer>The reports do not hold the answer",
        "<answer>Nicht in den Berichten gefunden",
        "<answer>报告中未提及",
        "<answer>$\\boxed{1200}",
        "<answer>\\boxed{\\text{" + "1200 " * 50,
        "<answer>[TOOL_CALLS]search",
        "<answer><output>1200",
        "<answer><search_results><result>" + "x" * 200,
        '<answer><function name="a&lt;b',
        "<answer><search>Who?</search>",
    ],
)
def test_nothing_is_shown_that_may_become_not_found(output: str) -> None:
    """Nor markup, which is not a part of the answer."""
    shown = Shown()
    stream = AnswerStream(shown)
    read = stream.attempt()
    for character in output:
        read(character)
    assert shown.texts == []
    stream.show(NOT_FOUND, last=True)
    assert shown.text == NOT_FOUND


@pytest.mark.parametrize(
    "answer",
    [
        "$5 million was paid.",
        "$\\alpha$ is the exponent.",
        "[Paris](https://paris.fr) is the capital.",
        "{1, 2} is the set.",
        "<5 mg per day is the limit",
        "<b>Paris</b> is the capital </result>",
    ],
)
def test_an_answer_that_begins_like_markup_is_shown_while_it_is_written(answer: str) -> None:
    """What is shown is what is stored."""
    shown = Shown()
    stream = AnswerStream(shown)
    read = stream.attempt()
    for character in f"<answer>{answer}</answer>":
        read(character)
    assert len(shown.texts) > 5
    assert parse_answer(f"<answer>{answer}</answer>") == shown.text == answer
    assert all(answer.startswith(text) for text in shown.texts)


PARTS = (
    "<|>|/|$|\\|\\boxed{|}|{|[|search|output|answer |result|a| |&lt;|\n|[TOOL_|CALLS]|5|="
).split("|")


@given(st.lists(st.sampled_from(PARTS), max_size=12))
def test_text_that_was_shown_is_never_taken_back(pieces: Sequence[str]) -> None:
    """Holds for one answer without tags of answers in it."""
    output = f"<answer>{''.join(pieces)}</answer>"
    shown = Shown()
    read = AnswerStream(shown).attempt()
    for character in output:
        read(character)
    if "answer" not in output[8:-9]:
        assert parse_answer(output).startswith(shown.text)


@pytest.mark.parametrize(
    ("second", "kept"),
    [("Michael Mann", len("Michael")), ("Michel", len("Mich")), ("Someone", 0)],
)
def test_an_answer_that_is_written_again_replaces_what_differs(second: str, kept: int) -> None:
    parts = list[tuple[int, str]]()
    stream = AnswerStream(lambda *part: parts.append(part))
    stream.attempt()("<answer>Michael")
    stream.attempt()(f"<answer>{second}</answer>")
    stream.show(second, last=True)
    assert parts == [(0, "Michael"), (kept, second[kept:])]


MARKED = st.text(st.sampled_from("ab \\!<&[](:#。"), max_size=30)


@given(MARKED, st.lists(st.integers(1, 4), max_size=30))
def test_pieces_of_markdown_are_those_of_the_whole(answer: str, lengths: Sequence[int]) -> None:
    """No link, image or HTML arises where two pieces meet."""
    text = AnswerText()
    sent = ""
    at = 0
    for length in lengths:
        if piece := answer[at : at + length]:
            sent += text.take(AnswerDelta(at, piece))
            at += len(piece)
    whole = model_markdown(answer) + "\n\nSources:"
    assert whole.startswith(sent)
    assert sent + text.rest(whole) == whole


def test_text_that_was_sent_cannot_be_taken_back() -> None:
    text = AnswerText()
    assert text.take(AnswerDelta(0, "Michael Mann")) == "Michael Man"
    assert text.take(AnswerDelta(3, "hel")) == ""
    with pytest.raises(UpstreamUnavailable, match="wrote a different answer; ask again"):
        text.rest("Michel")


class BrokenModel:
    """A model whose first output breaks off after a part of the answer."""

    name = "fixed"
    endpoint = "http://127.0.0.1:9/v1"

    def __init__(self, *outputs: str) -> None:
        self._outputs = list(outputs)

    async def complete(self, prompt: Prompt) -> Completion:
        raise AssertionError("the answer is streamed")

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        return None

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        output = self._outputs.pop(0)
        for character in output:
            on_delta(Delta(character))
        if self._outputs:
            raise UpstreamUnavailable("it broke off", endpoint=self.endpoint)
        return Completion(output, "stop")


async def test_a_call_that_breaks_off_is_repeated_without_sending_anything_twice() -> None:
    deltas = list[AnswerDelta]()
    model = BrokenModel("<answer>Michael", "<answer>Michael Mann</answer>")
    deployment = Deployment(answerer=model, attempts=2)
    run = await deployment.gateway().answer(
        QUESTION,
        RequestOptions(),
        lambda event: deltas.append(event) if isinstance(event, AnswerDelta) else None,
        streamed=True,
    )
    assert "".join(delta.text for delta in deltas) == "Michael Mann"
    assert [event for event in run.events if isinstance(event, AnswerDelta)] == deltas
    outcomes = [call.outcome for call in run.calls if call.role == "answer"]
    assert sorted(outcomes) == ["completed", "unavailable"]


async def test_only_answers_that_are_wanted_so_are_streamed() -> None:
    run = await Deployment().gateway().answer(AnswerRequest(QUESTION), RequestOptions())
    assert not any(isinstance(event, AnswerDelta) for event in run.events)
