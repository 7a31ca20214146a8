"""Clients of language models, behind one protocol."""

from router.models.model import (
    Completion,
    Delta,
    Message,
    Model,
    OnDelta,
    Prompt,
    Sampling,
    Usage,
)

__all__ = [
    "Completion",
    "Delta",
    "Message",
    "Model",
    "OnDelta",
    "Prompt",
    "Sampling",
    "Usage",
]
