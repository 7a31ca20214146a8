"""Clients of language models, behind one protocol."""

from router.models.model import (
    Completion,
    Delta,
    Function,
    Message,
    Model,
    OnDelta,
    Prompt,
    Sampling,
    ScriptedModel,
    Usage,
)

__all__ = [
    "Completion",
    "Delta",
    "Function",
    "Message",
    "Model",
    "OnDelta",
    "Prompt",
    "Sampling",
    "ScriptedModel",
    "Usage",
]
