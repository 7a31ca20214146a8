"""A row of the training data: one assistant turn (TBSS appendix D: loss on generated tokens only)."""

import msgspec


class Row(msgspec.Struct, frozen=True):
    """What the engine shows the model, and what the model is to write."""

    prompt_ids: tuple[int, ...]
    """Token ids of the conversation before the turn, exactly as the serving engine sees it, without loss."""
    completion_ids: tuple[int, ...]
    """Token ids of the turn, its end included; never empty."""
    turn: int
    """The number of the turn in its trajectory, from 0."""
    trajectory: int
    """The number of its trajectory among those that were kept, from 0."""
