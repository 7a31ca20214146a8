"""Reasoning is told apart from text in every spelling, whole and in any pieces."""

import json
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.models import Message, Prompt, Sampling
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.models.openai_wire import ChatReply, Choice, MessageReply
from router.models.streaming import StreamedReply
from router.models.thoughts import Thoughts
from router.testing.openai_server import (
    DONE,
    MODEL,
    OpenAIServer,
    end_event,
    replies,
    streams,
    text_event,
)
from tests.router.models.reading import streamed

SEARCH = "<search>real?</search>"
THOUGHT = "I could write <search>wrong?</search> or <answer>x</answer>."
PROMPT = Prompt((Message("user", "hi"),), Sampling(), stop=("</search>",))
TAGS = (
    "think thinking thought thoughts reasoning reflection Think seed:think mm:think "
    "think:a1b2 ifm|think_fast reason "
    "analysis scratchpad think_never_used_51bce0c7"
).split()
FINAL = f"<|start|>assistant<|channel|>final<|message|>{SEARCH}"
FORMS = {
    **{tag: f"<{tag}>{THOUGHT}</{tag}>{SEARCH}" for tag in TAGS},
    "white space": f"\n < THINK >\n{THOUGHT}\n</ Think >\n\n{SEARCH}",
    "attribute": f'<thinking effort="high">{THOUGHT}</thinking>{SEARCH}',
    "LongCat": f"<longcat_think>{THOUGHT}</longcat_think>{SEARCH}",
    "antThinking": f"<antThinking>{THOUGHT}</antThinking>{SEARCH}",
    **{
        f"{name}_start": f"<|{name}_start|>{THOUGHT}<|{name}_end|>{SEARCH}"
        for name in ("think", "thought", "cot", "reasoning")
    },
    **{
        f"{begin} {end}": f"{begin}{THOUGHT}{end}{SEARCH}"
        for begin, end in (
            ("<|START_THINKING|>", "<|END_THINKING|>"),
            ("<think>", "<|end_think|>"),
            ("<|begin_think|>", "<|end_thinking|>"),
            ("<|begin_of_thought|>", "<|end_of_thought|>"),
            ("<|begin_thought|>", "<|end_thought|>"),
            ("<think>", "<end_think>"),
            ("<start_of_reasoning>", "<end_of_reasoning>"),
        )
    },
    "only closed by its end": f"{THOUGHT}<|END_THINKING|>{SEARCH}",
    "Mistral": f"[THINK]{THOUGHT}[/THINK]{SEARCH}",
    "Kimi": f"◁think▷{THOUGHT}◁/think▷{SEARCH}",
    "Cohere": (
        f"<|START_THINKING|>{THOUGHT}<|END_THINKING|><|START_RESPONSE|>{SEARCH}<|END_RESPONSE|>"
    ),
    "Sky-T1": (
        f"<|begin_of_thought|>{THOUGHT}<|end_of_thought|>\n<|begin_of_solution|>{SEARCH}<|"
        "end_of_solution|>"
    ),
    "Apertus": f"<|inner_prefix|>{THOUGHT}<|inner_suffix|>{SEARCH}",
    "Gemma": f"<|channel>thought\n{THOUGHT}<channel|>{SEARCH}",
    "MedGemma": f"<unused94>thought\n{THOUGHT}<unused95>{SEARCH}",
    "Solar": f"<|think|>{THOUGHT}<|end|><|begin|>assistant<|content|>{SEARCH}<|end|>",
    "Granite": f"Here is my thought process: {THOUGHT}\nHere is my response: {SEARCH}",
    "Apriel": (
        f"Here are my reasoning steps:\n{THOUGHT}[BEGIN FINAL RESPONSE]{SEARCH}[END FINAL RESPONSE]"
    ),
    "harmony": f"<|channel|>analysis<|message|>{THOUGHT}<|end|>{FINAL}",
    "harmony, its end": f"<|channel|>analysis<|message|>{THOUGHT}<|end|>{FINAL}<|return|>",
    "harmony, without a start": f"<|channel|>analysis<|message|>{THOUGHT}<|channel|>final<|message|>{SEARCH}",
    "harmony, begun by the template": f"analysis<|message|>{THOUGHT}<|end|>{FINAL}",
    "harmony, without tokens": f"analysis{THOUGHT}assistantfinal{SEARCH}",
    "harmony, commentary": f"<|channel|>commentary<|message|>{THOUGHT}<|end|>{FINAL}",
    "harmony, a call": f"<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    f'{{"q": "{THOUGHT}"}}<|call|><|start|>assistant<|channel|>final<|message|>{SEARCH}',
    "repeated": f"<think>{THOUGHT}</think>\n<think>{THOUGHT}</think>{SEARCH}",
    "nested": f"<think>a <reasoning>b</reasoning> {THOUGHT}</think>{SEARCH}",
    "nested alike": f"<think>a <think>b</think> {THOUGHT}</think>{SEARCH}",
    "mentioned in a thought": f"<think>I open <think> first. {THOUGHT}</think>{SEARCH}",
    "its end mentioned": f"<think>I say </think> and {THOUGHT}</think>{SEARCH}",
    "only closed": f"{THOUGHT}</think>{SEARCH}",
    "behind text": f"I look.\n<think>{THOUGHT}</think>{SEARCH}",
    "within the block": f"<search><think>{THOUGHT}</think>real?</search>",
    "empty": f"<think></think>{SEARCH}",
    "closed in itself": f"<think/>{SEARCH}",
}


@pytest.mark.parametrize(
    "flood", [" ", "\n", "<", "<think", "a<think>", "</think>", "`<think>", "[", "<|start|>", "he"]
)
def test_a_flood_of_small_pieces(flood: str) -> None:
    """What is held back stays short, so that the time is linear in the text."""
    thoughts = Thoughts()
    for _ in range(3000):
        thoughts.feed(flood)
    text, thought = thoughts.end()
    assert len(text + thought) < 300


def told_apart(pieces: Iterable[str], *, cut: bool = False, opened: bool = False) -> str:
    """The text of an output that comes in these pieces."""
    thoughts = Thoughts(opened=opened)
    text = ""
    for piece in filter(None, pieces):
        said, _ = thoughts.feed(piece)
        text = said if thoughts.revoked else text + said
        thoughts.revoked = False
    said, _ = thoughts.end(cut=cut)
    return said if thoughts.revoked else text + said


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
async def test_no_thought_is_text(
    pool: ConnectionPool, openai_server: OpenAIServer, form: str
) -> None:
    """Neither of a whole reply nor of a stream; a thought that mentions a stop string does not
    end the turn.
    """
    message = {"content": form}
    openai_server.plays(
        replies(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode())
    )
    output = await OpenAIHTTP(pool, openai_server.base_url, MODEL).complete(PROMPT)
    assert output.text.removeprefix("I look.").strip() == SEARCH
    assert ("wrong?" in output.reasoning) == ("wrong?" in form)
    if form.startswith((THOUGHT, "<think>I say")):
        return  # once a stop string is met outside of a thought, nobody reads on
    pieces = [text_event(form[at : at + 3]) for at in range(0, len(form), 3)]
    openai_server.plays(streams(*pieces, end_event(), DONE))
    told = await streamed(OpenAIHTTP(pool, openai_server.base_url, MODEL), PROMPT)
    assert told.text.removeprefix("I look.").strip() == SEARCH


UNITS = (
    "</answe",
    "_<|_1_",
    "<|_1_>",
    "<",
    "<think" + " " * 84,
    "<|a_end|",
    "<td>a</td>",
    "\ud83d",
    "a",
)


@pytest.mark.timing
@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_one_long_piece(unit: str) -> None:
    """A piece as long as an event may be is read in a step of the event loop."""
    delta = MessageReply((unit * 900_000)[:900_000] if len(unit) > 1 else unit * 170_000)
    chunk = ChatReply((Choice(delta=delta, finish_reason="stop"),))

    def seconds() -> float:
        reply = StreamedReply(Prompt((), Sampling(max_tokens=16_000), stop=("</x>",)))
        begun = time.thread_time()
        reply.take(chunk)
        reply.end()
        return time.thread_time() - begun

    assert min(seconds() for _ in range(3)) < 0.05


def test_marks_beyond_the_brackets_that_are_looked_at() -> None:
    """In an output with many brackets the later ones are text, in any pieces."""
    for many, end in ((8_000, "a"), (9_000, "<think>x</think>a")):
        form = "[" * many + "\n<think>x</think>a"
        assert told_apart([form]) == "[" * many + "\n" + end
        assert told_apart(form[at : at + 7] for at in range(0, len(form), 7)).endswith("\n" + end)


def test_marks_beyond_those_that_are_looked_at() -> None:
    """No output has more than 256; what comes after them is text as it stands."""
    form = "<think>x</think>a"
    assert Thoughts().feed(form * 200) == ("a" * 127 + "a" + form * 72, "x" * 128)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_any_pieces(form: str) -> None:
    """One character after the other, or split anywhere."""
    whole = told_apart([form])
    assert told_apart(form) == whole
    assert all(told_apart([form[:at], form[at:]]) == whole for at in range(len(form)))


MARKS = (
    '<think>|</think>|<thinking >|</ think>|<think/>| |a|\n|`|"|<|[THINK]|[/THINK]|analysis|final|'
    "assistantfinal|here is my response:|Here is my thought process:|<search>|◁think▷|◁/think▷|W|>"
)


@given(
    st.lists(
        st.sampled_from([*MARKS.split("|"), "<|channel|>", "<|message|>", "<|end|>", "<|start|>"]),
        max_size=10,
    ),
    st.data(),
)
def test_any_text_in_any_pieces(tokens: list[str], data: st.DataObject) -> None:
    """Whatever it is, with and without a thought that the template has opened."""
    text = "".join(tokens)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for opened in (False, True):
        whole = told_apart([text], opened=opened)
        assert told_apart(pieces, opened=opened) == whole
        assert told_apart(text, opened=opened) == whole


@pytest.mark.parametrize(
    "text",
    [
        "The <think> tag opens a thought.",
        "It writes `<think>` and `</think>` around it.",
        'Both "[THINK]" and “◁think▷” are known (<think>).',
        "<answer>the <think> tag</answer>",
        "analysis of variance",
        "Analysis: 7",
        "Here is Paris.",
        "a < b and b > c, [1], [think about it]",
        "thinking</b> and <b>reasoning</b>",
    ],
)
def test_mentions_are_text(text: str) -> None:
    """A mark in quotes, or behind a word and never closed, is a part of what the model says."""
    assert told_apart([text]) == text
    assert told_apart(text) == text


@pytest.mark.parametrize(
    "text", ["<think>a", "I look.\n<think>a", "<search><think>a", "[THINK]a", "analysisWe a"]
)
def test_an_unclosed_thought(text: str) -> None:
    """It goes on to the end, wherever a limit cut it."""
    assert not told_apart([text], cut=True).endswith("a")
    assert not told_apart([text]).endswith("a")


WORDED = (
    "Here are my reasoning steps:\nhm\n[BEGIN FINAL RESPONSE]\n%s\n[END FINAL RESPONSE]\n<|end|>"
)
REPLIES = {
    "words": (WORDED % SEARCH, False),
    "harmony's words": (f"analysisWe look.assistantfinal{SEARCH}", False),
    "harmony": (f"<|channel|>analysis<|message|>hm<|end|>{FINAL}", True),
    "opened by the template": (f"hm</think>{SEARCH}", True),
    "opened by the template, in Cohere's words": (f"hm<|END_THINKING|>{SEARCH}", True),
    "opened by the model": (f"<think>hm</think>{SEARCH}", False),
    "a stray end": (f"{SEARCH}\n</think>", False),
    "a stray end, after spaces": (f"{SEARCH}</think> \n<|im_end|>", False),
    "a second end": (f"<think>hm</think>{SEARCH}\n</think>", False),
    "no thought": (SEARCH, False),
}


def replied(pieces: Iterable[str], *, opened: bool = False, stop: str = "") -> tuple[str, bool]:
    """The text of a streamed reply, and whether the template is known to open thoughts."""
    reply = StreamedReply(Prompt((), Sampling(), stop=(stop,) if stop else ()), opened=opened)
    for piece in pieces:
        reply.take(ChatReply((Choice(delta=MessageReply(piece)),)))
    reply.take(ChatReply((Choice(delta=MessageReply(""), finish_reason="stop"),)))
    return reply.end().text.strip(), reply.opened


@pytest.mark.parametrize(("form", "opened"), REPLIES.values(), ids=REPLIES.keys())
@given(st.data())
def test_what_is_learnt_from_a_reply_in_any_pieces(
    form: str, opened: bool, data: st.DataObject
) -> None:
    """Its text, and whether the template opens thoughts, do not depend on how it is cut."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(form)), max_size=4)))
    pieces = [form[start:end] for start, end in zip([0, *cuts], [*cuts, len(form)], strict=True)]
    for stop in ("", "</search>"):
        text, learnt = replied(pieces, stop=stop)
        assert text == SEARCH
        assert learnt == opened or stop
    assert replied([form]) == replied(form) == (SEARCH, opened)


async def test_a_thought_that_the_template_opened(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """An endpoint that has shown it once passes no more of it on as text; where the config says
    so, never.
    """
    pieces = [
        text_event(piece)
        for piece in ("I ", "think <search>x</search>.", "</thi", "nk>", "<search>real?")
    ]
    openai_server.plays(streams(text_event("Hm.</think>"), text_event(SEARCH), end_event(), DONE))
    known = OpenAIHTTP(pool, openai_server.base_url, MODEL)
    assert (await known.stream(PROMPT, lambda _delta: None)).text == SEARCH
    told = OpenAIHTTP(pool, openai_server.base_url, MODEL, thinking=True)
    for model in (known, told):
        openai_server.plays(streams(*pieces, text_event("</search>"), end_event(), DONE))
        output = await streamed(model, PROMPT)
        assert (output.text, output.reasoning) == (SEARCH, "I think <search>x</search>.")
        openai_server.plays(streams(text_event("Paris."), end_event(), DONE))
        assert (await streamed(model, Prompt(PROMPT.messages, Sampling()))).text == "Paris."
