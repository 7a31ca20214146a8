"""Reasoning is separated from text in every spelling, whole and in any pieces."""

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
from tests.openai_behaviours import end_event, replies, text_event
from tests.openai_server import DONE, MODEL, OpenAIServer, streams
from tests.router.models.reading import streamed

SEARCH = "<search>real?</search>"
THOUGHT = "I could write <search>wrong?</search> or <answer>x</answer>."
PROMPT = Prompt((Message("user", "hi"),), Sampling(), stop=("</search>",))
TAGS = (
    "think thinking thought thoughts reasoning reflection Think seed:think mm:think "
    "think:a1b2 ifm|think_fast reason "
    "analysis scratchpad think_never_used_51bce0c7 "
    "scratch_pad scratch-pad reflecting reflections chain-of-thought chainOfThought "
    "inner-monologue innerThoughts internal_reasoning self-reflection self_reflection "
    "thought_process thought-process reasoningProcess "
    "rationale plan planning deliberation brainstorm internal hidden contemplation ponder "
    "considerations inner_voice inner-dialogue 思考 思考过程 推理 思维链 размышление razonamiento"
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
    **{
        f"[{name}]": f"[{name}]{THOUGHT}[/{name}]{SEARCH}"
        for name in (
            "think THINKING REASONING Reasoning THOUGHT THOUGHTS ANALYSIS REFLECTION SCRATCHPAD "
            "INNER_MONOLOGUE CHAIN_OF_THOUGHT RATIONALE PLAN"
        ).split()
    },
    **{
        f"<|{name}|>": f"<|{name}|>{THOUGHT}<|/{name}|>{SEARCH}"
        for name in ("thinking", "thought", "rationale", "plan")
    },
    "after white space": f"\n\n [REASONING]\n{THOUGHT}\n[/REASONING]\n\n{SEARCH}",
    "s1": f"<|im_start|>think\n{THOUGHT}<|im_end|>\n<|im_start|>answer\n{SEARCH}<|im_end|>",
    "GLM": f"<think>{THOUGHT}</think><|begin_of_box|>{SEARCH}<|end_of_box|>",
    "GLM, without a thought": f"<|begin_of_box|>{SEARCH}<|end_of_box|>",
    "an answer between marks": (
        f"<think>{THOUGHT}</think><|start_of_answer|>{SEARCH}<|end_of_answer|>"
    ),
    "an answer between other marks": (
        f"<think>{THOUGHT}</think><|answer_start|>{SEARCH}<|answer_end|>"
    ),
    "Kimi": f"◁think▷{THOUGHT}◁/think▷{SEARCH}",
    "Cohere": (
        f"<|START_THINKING|>{THOUGHT}<|END_THINKING|><|START_RESPONSE|>{SEARCH}<|END_RESPONSE|>"
    ),
    "Cohere, an action": (
        f"<|START_THINKING|>{THOUGHT}<|END_THINKING|><|START_ACTION|>[]<|END_ACTION|>{SEARCH}"
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
    "after text": f"I look.\n<think>{THOUGHT}</think>{SEARCH}",
    "within the block": f"<search><think>{THOUGHT}</think>real?</search>",
    "empty": f"<think></think>{SEARCH}",
    "closed in itself": f"<think/>{SEARCH}",
    "Open WebUI": f'<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 s'
    f"</summary>\n{THOUGHT}</details>\n{SEARCH}",
    "escaped": f"&lt;think&gt;{THOUGHT}&lt;/think&gt;{SEARCH}",
    "escaped, longer": f"\n&lt;Thinking&gt;{THOUGHT}&lt;/Thinking&gt;{SEARCH}",
    "full width": f"＜think＞{THOUGHT}＜/think＞{SEARCH}",
    "full width, longer": f"＜Thinking＞{THOUGHT}＜/Thinking＞{SEARCH}",
    "other brackets": f"【reasoning】{THOUGHT}【/reasoning】{SEARCH}",
}


@pytest.mark.parametrize(
    "flood", [" ", "\n", "<", "<think", "a<think>", "</think>", "`<think>", "[", "<|start|>", "he"]
)
def test_little_is_held_back_of_many_small_pieces(flood: str) -> None:
    """The time is therefore linear in the text."""
    thoughts = Thoughts()
    for _ in range(3000):
        thoughts.feed(flood)
    text, thought = thoughts.end()
    assert len(text + thought) < 300


def text_of(pieces: Iterable[str], *, cut: bool = False, opened: bool = False) -> str:
    """Return the text of an output that comes in these pieces."""
    thoughts = Thoughts(opened=opened)
    text = ""
    for piece in filter(None, pieces):
        piece_of_text, _ = thoughts.feed(piece)
        text = piece_of_text if thoughts.revoked else text + piece_of_text
        thoughts.revoked = False
    piece_of_text, _ = thoughts.end(cut=cut)
    return piece_of_text if thoughts.revoked else text + piece_of_text


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
async def test_no_reasoning_becomes_text(
    pool: ConnectionPool, openai_server: OpenAIServer, form: str
) -> None:
    """Holds for whole replies and streams. A thought that mentions a stop string does not end
    the turn.
    """
    message = {"content": form}
    openai_server.plays(
        replies(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode())
    )
    output = await OpenAIHTTP(pool, openai_server.base_url, MODEL).complete(PROMPT)
    assert output.text.removeprefix("I look.").strip() == SEARCH
    assert ("wrong?" in output.reasoning) == ("wrong?" in form)
    if form.startswith((THOUGHT, "<think>I say")):
        return  # a stop string outside of a thought ends the stream
    pieces = [text_event(form[at : at + 3]) for at in range(0, len(form), 3)]
    openai_server.plays(streams(*pieces, end_event(), DONE))
    streamed_output = await streamed(OpenAIHTTP(pool, openai_server.base_url, MODEL), PROMPT)
    assert streamed_output.text.removeprefix("I look.").strip() == SEARCH


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
def test_a_piece_as_long_as_an_event_is_read_in_one_step(unit: str) -> None:
    """A step is short enough for the event loop."""
    delta = MessageReply((unit * 900_000)[:900_000] if len(unit) > 1 else unit * 170_000)
    chunk = ChatReply((Choice(delta=delta, finish_reason="stop"),))

    def seconds() -> float:
        reply = StreamedReply(Prompt((), Sampling(max_tokens=16_000), stop=("</x>",)))
        start = time.thread_time()
        reply.take(chunk)
        reply.end()
        return time.thread_time() - start

    assert min(seconds() for _ in range(3)) < 0.05


def test_marks_after_too_many_brackets_are_text() -> None:
    """Holds in any pieces."""
    for count, ending in ((8_000, "a"), (9_000, "<think>x</think>a")):
        form = "[" * count + "\n<think>x</think>a"
        assert text_of([form]) == "[" * count + "\n" + ending
        assert text_of(form[at : at + 7] for at in range(0, len(form), 7)).endswith("\n" + ending)


def test_marks_after_the_first_256_are_text() -> None:
    form = "<think>x</think>a"
    assert Thoughts().feed(form * 200) == ("a" * 127 + "a" + form * 72, "x" * 128)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_form_is_read_equally_in_any_pieces(form: str) -> None:
    """One character at a time, or split anywhere."""
    whole = text_of([form])
    assert text_of(form) == whole
    assert all(text_of([form[:at], form[at:]]) == whole for at in range(len(form)))


MARKS = (
    '<think>|</think>|<thinking >|</ think>|<think/>| |a|\n|`|"|<|[THINK]|[/THINK]|analysis|final|'
    "assistantfinal|here is my response:|Here is my thought process:|<search>|◁think▷|◁/think▷|W|>|"
    "&lt;think&gt;|&lt;/think&gt;|【thought】|[Plan]|[/Plan]|<plan>|</plan>|<hidden|here's|"
    "think|Here are my reasoning steps:|[Reasoning]"
)


@given(
    st.lists(
        st.sampled_from(
            [
                *MARKS.split("|"),
                "<|channel|>",
                "<|message|>",
                "<|end|>",
                "<|start|>",
                "<|im_start|>",
            ]
        ),
        max_size=10,
    ),
    st.data(),
)
def test_any_text_is_read_equally_in_any_pieces(tokens: list[str], data: st.DataObject) -> None:
    """With and without a thought that the template has opened."""
    text = "".join(tokens)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for opened in (False, True):
        whole = text_of([text], opened=opened)
        assert text_of(pieces, opened=opened) == whole
        assert text_of(text, opened=opened) == whole


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
        "<answer>the &lt;think&gt; tag</answer>",
        'A <details type="reasoning"> element</details>',
        "<details><summary>a</summary>b</details>c",
        "【Reasoning】The reports agree. <answer>Paris</answer>",
        "【Thought】I look. <search>x</search>",
        "&lt;thinkpad&gt; is a laptop.&lt;/think&gt;",
        "&lt;think&gt; is a tag.",
        '<details type="reasoning">The reports agree. <answer>Paris</answer>',
        "[Plan] The reports agree. <answer>Paris</answer>",
        "[REASONING] I look. <search>x</search>",
        "[1] Paris [2] Rome",
        "The [Plan] says [Reasoning] first.\n[/Plan]",
        "A [thought] is [analysis].",
        "<plan> is a tag. <answer>Paris</answer>",
        "<rationale>The reports agree.\n<answer>Paris</answer>",
        "<trip>\n<plan>Rome</plan>\n</trip>",
        "<answer><plan>Rome</plan></answer>",
        "<report><hidden>a</hidden></report>",
        "<report>a</report>",
        "<search>a</search>",
        "<answer>a</answer>",
        "<action_plan>a</action_plan>",
        "<w:hidden/>a",
        "<planet>a</planet>",
        "<b>a</b> and <internal/>",
        "```html\n<plan>Rome</plan>\n```",
        "plan[internal] = hidden[/plan]",
        "here's a plan",
        "Here are my",
        "analysi",
        "<|begin_of_boxes|>",
        "<|im_start|>user",
    ],
)
def test_a_mark_that_is_only_mentioned_is_text(text: str) -> None:
    """It stands in quotes, or after a word and is never closed."""
    assert text_of([text]) == text
    assert text_of(text) == text


@pytest.mark.parametrize(
    "text", ["<think>a", "I look.\n<think>a", "<search><think>a", "[THINK]a", "analysisWe a"]
)
def test_an_unclosed_thought_lasts_to_the_end(text: str) -> None:
    """Holds wherever a limit cut it."""
    assert not text_of([text], cut=True).endswith("a")
    assert not text_of([text]).endswith("a")


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
    """Return the text of a streamed reply, and whether its template is known to open thoughts."""
    reply = StreamedReply(Prompt((), Sampling(), stop=(stop,) if stop else ()), opened=opened)
    for piece in pieces:
        reply.take(ChatReply((Choice(delta=MessageReply(piece)),)))
    reply.take(ChatReply((Choice(delta=MessageReply(""), finish_reason="stop"),)))
    return reply.end().text.strip(), reply.opened


@pytest.mark.parametrize(("form", "opened"), REPLIES.values(), ids=REPLIES.keys())
@given(st.data())
def test_a_reply_s_text_and_its_template_do_not_depend_on_pieces(
    form: str, opened: bool, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(form)), max_size=4)))
    pieces = [form[start:end] for start, end in zip([0, *cuts], [*cuts, len(form)], strict=True)]
    for stop in ("", "</search>"):
        text, learnt = replied(pieces, stop=stop)
        assert text == SEARCH
        assert learnt == opened or stop
    assert replied([form]) == replied(form) == (SEARCH, opened)


async def test_a_thought_opened_by_the_template_is_not_passed_on_as_text(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """An endpoint is known to open thoughts after its first such reply, or from the start by the
    config.
    """
    pieces = [
        text_event(piece)
        for piece in ("I ", "think <search>x</search>.", "</thi", "nk>", "<search>real?")
    ]
    openai_server.plays(streams(text_event("Hm.</think>"), text_event(SEARCH), end_event(), DONE))
    learnt_model = OpenAIHTTP(pool, openai_server.base_url, MODEL)
    assert (await learnt_model.stream(PROMPT, lambda _delta: None)).text == SEARCH
    configured_model = OpenAIHTTP(pool, openai_server.base_url, MODEL, thinking=True)
    for model in (learnt_model, configured_model):
        openai_server.plays(streams(*pieces, text_event("</search>"), end_event(), DONE))
        output = await streamed(model, PROMPT)
        assert (output.text, output.reasoning) == (SEARCH, "I think <search>x</search>.")
        openai_server.plays(streams(text_event("Paris."), end_event(), DONE))
        assert (await streamed(model, Prompt(PROMPT.messages, Sampling()))).text == "Paris."
