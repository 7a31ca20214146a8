"""Tasks that chat tools set in the background, such as titles, tags and follow-up questions.

They come as if a user had asked: from Open WebUI, LibreChat, LobeChat, NextChat, Cherry Studio,
big-AGI and others.
"""

import re
from typing import Literal

ChatTasks = Literal["answer", "refuse", "search"]
_MAX_CHARS = 4000
_HEAD_CHARS = 400
_TEMPLATE = re.compile(r"#{1,4} *Task:(?!\s*Respond to the user)", re.IGNORECASE)
"""The beginning of Open WebUI's templates, but for the one that holds a question and files to
answer it from.
"""
_ASKED = re.compile(
    r"Your task is to reflect the speaker's likely facial expression"
    r"|(?:Please )?(?:generate|provide) a [\w ,-]{0,50}title (?:\(.{0,30}\) )?(?:for|"
    r"summarizing) \w+ conversation"
    r"|Analyze (?:this|the given short) conversation[\s\S]{0,200}\btitle\b"
    r"|使用四到五个字直接返回这句话的简要主题",
    re.IGNORECASE,
)
_SYSTEM = re.compile(
    r"[\s\S]{0,80}?(?:conversation|chat|会话|对话)"
    r"[\s\S]{0,80}?(?:(?:concise|few-words chat|into a|into) titles?\b|标题)",
    re.IGNORECASE,
)


def is_chat_task(system: str, asked: str) -> bool:
    """Tell a task from a question, by the system message and the last message of the user."""
    head = asked.lstrip()[:_HEAD_CHARS]
    templated = _TEMPLATE.match(head) and "</chat_history>" in asked
    return bool(templated or _ASKED.match(head) or _SYSTEM.match(system))


def cut(text: str) -> str:
    """Return the beginning and the end of a long text."""
    return text if len(text) <= 2 * _MAX_CHARS else f"{text[:_MAX_CHARS]}\n…\n{text[-_MAX_CHARS:]}"
