"""By what embedders are told apart; known without loading one."""

from serving.config import EmbedderConfig
from serving.retrieval.embedder import MiniLM
from serving.retrieval.endpoint_embedder import endpoint_identity


def identity_of(config: EmbedderConfig) -> str:
    """The `identity` of the embedder that a config names."""
    if config.kind == "minilm":
        return MiniLM.identity
    return endpoint_identity(config.model or "", config.passage_prefix)
