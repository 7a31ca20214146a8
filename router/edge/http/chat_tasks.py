"""Background tasks of chat tools, such as titles, tags and follow-up questions.

Open WebUI, LibreChat, LobeChat, NextChat, Cherry Studio, big-AGI and others send them like
questions of a user.
"""

import re
from typing import Literal

ChatTasks = Literal["answer", "refuse", "search"]
_MAX_CHARS = 4000
_HEAD_CHARS = 400
_TEMPLATE = re.compile(r"#{1,4} *Task:(?!\s*Respond to the user)", re.IGNORECASE)
"""Start of Open WebUI's templates, except the one that has a question with files to answer from."""
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
    """Return whether the system message and the last user message make a task, not a question."""
    head = asked.lstrip()[:_HEAD_CHARS]
    templated = _TEMPLATE.match(head) and "</chat_history>" in asked
    return bool(templated or _ASKED.match(head) or _SYSTEM.match(system))


def cut(text: str) -> str:
    """Return the start and the end of a long text."""
    return text if len(text) <= 2 * _MAX_CHARS else f"{text[:_MAX_CHARS]}\n…\n{text[-_MAX_CHARS:]}"
