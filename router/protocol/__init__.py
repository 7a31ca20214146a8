"""The text protocol between the gateway and its models: prompts, and parsers of their outputs."""

from router.protocol.decision import parse_decision
from router.protocol.evidence import (
    NO_EVIDENCE,
    Passage,
    Report,
)
from router.protocol.scoring import exact_match, normal_answer
from router.protocol.turns import parse_turn
from router.protocol.vocabulary import Vocabulary

__all__ = [
    "NO_EVIDENCE",
    "Passage",
    "Report",
    "Vocabulary",
    "exact_match",
    "normal_answer",
    "parse_decision",
    "parse_turn",
]
