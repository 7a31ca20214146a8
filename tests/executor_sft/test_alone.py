"""What the mini models learn of working alone, and what the gateway then shows them."""

from executor_sft.miniworld.dialogues import DialogueWriter, RolePrompts
from executor_sft.miniworld.world import World
from router.calls.role import Role
from router.ledger.ledger import Ledger
from router.models.model import Message, Sampling, ScriptedModel
from router.protocol.evidence import Passage
from router.protocol.tags import unescape
from router.protocol.turns import parse_answer
from router.search.agents import SingleAgent
from router.search.context import RunContext
from router.search.executor import ExecutorLimits
from router.search.retrieval import FixedRetriever
from tests.executor_sft.test_dialogues import passages_of, texts


async def test_a_single_agent_is_shown_what_it_was_trained_on(world: World, system: RolePrompts) -> None:
    """Given its own turns and the same passages, the gateway leads the very conversation, word for word."""
    writer = DialogueWriter(world, system)
    for _ in range(20):
        dialogue = writer.alone(passages=2)
        shown = [turn.text for turn in dialogue[2:] if turn.kind == "user"]
        queries = [
            unescape(text.removeprefix("<search>").removesuffix("</search>")) for text in texts(dialogue, "search")
        ]
        found = [[Passage(f"p{number}", *one) for number, one in enumerate(passages_of(text))] for text in shown]
        model = ScriptedModel(texts(dialogue, "search", "answer"))
        role = Role("delegation", model, system.agent, Sampling(max_tokens=128))
        limits = ExecutorLimits(max_turns=20, max_searches=10)
        single = SingleAgent(role, FixedRetriever(dict(zip(queries, found, strict=True))), limits)
        context = RunContext.lasting(60.0, lambda event: None, Ledger())
        result = await single.run(unescape(dialogue[1].text), context)
        assert result.delegation is not None
        assert result.delegation.messages == tuple(
            Message(turn.role, turn.text)  # type: ignore[arg-type]
            for turn in dialogue
        )
        assert (result.answer, result.outcome) == (parse_answer(dialogue[-1].text), "answered")
