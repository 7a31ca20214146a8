"""Recognition of background tasks of chat tools: requests for titles, tags and follow-up questions.

Open WebUI, LibreChat, LobeChat, NextChat, Cherry Studio, big-AGI and others send such requests in
the same form as the questions of their users. These requests need no search.
"""

import re
from typing import Literal

ChatTasks = Literal["answer", "refuse", "search"]
_MAX_CHARS = 4000
_HEAD_CHARS = 400
_TEMPLATE = re.compile(r"#{1,4} *Task:(?!\s*Respond to the user)", re.IGNORECASE)
"""Start of Open WebUI's prompt templates for tasks. The template for a user's question about files
starts in the same way, but is excluded, because it is no task.
"""
_ASKED = re.compile(
    r"Your task is to reflect the speaker's likely facial expression"
    r"|(?:Please )?(?:generate|provide) a [\w ,-]{0,50}title (?:\(.{0,30}\) )?(?:for|"
    r"summarizing) \w+ conversation"
    r"|Analyze (?:this|the given short) conversation[\s\S]{0,200}\btitle\b"
    r"|使用四到五个字直接返回这句话的简要主题",
    re.IGNORECASE,
)
"""Beginning of a user message that asks for a title, or for a facial expression."""
_SYSTEM = re.compile(
    r"[\s\S]{0,80}?(?:conversation|chat|会话|对话)"
    r"[\s\S]{0,80}?(?:(?:concise|few-words chat|into a|into) titles?\b|标题)",
    re.IGNORECASE,
)
"""Beginning of a system message that asks for the title of a conversation."""


def is_chat_task(system: str, asked: str) -> bool:
    """Return whether a request is a background task of a chat tool, not a question of its user.
    `system`: the system message; empty if there is none. `asked`: the last user message.
    """
    head = asked.lstrip()[:_HEAD_CHARS]
    templated = _TEMPLATE.match(head) and "</chat_history>" in asked
    return bool(templated or _ASKED.match(head) or _SYSTEM.match(system))


def cut(text: str) -> str:
    """Return a text. If it has more than `2 * _MAX_CHARS` characters, return only its start and its
    end, with `…` in between.
    """
    return text if len(text) <= 2 * _MAX_CHARS else f"{text[:_MAX_CHARS]}\n…\n{text[-_MAX_CHARS:]}"
