"""The system prompts that the mini models are trained and served with."""

from importlib import resources

from executor_sft.miniworld.dialogues import RolePrompts

_ROLES = ("delegation", "execution", "answer", "agent")


def mini_prompts() -> RolePrompts:
    """The system prompts that the preset `mini` serves."""
    folder = resources.files("serving") / "prompts" / "mini"
    texts = [(folder / f"{role}.txt").read_text("utf-8").strip() for role in _ROLES]
    return RolePrompts(*texts)
