"""Qwen3 in miniature."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a mini model; heads are 32 wide."""

    width: int
    layers: int
    feed_forward: int


BACKBONE = Shape(width=256, layers=5, feed_forward=640)
"""About 4 million parameters: delegates and answers."""
EXECUTOR = Shape(width=192, layers=5, feed_forward=288)
"""About 1.8 million parameters: executes."""
LADDER = {
    "small": Shape(width=64, layers=4, feed_forward=128),
    "medium": Shape(width=96, layers=4, feed_forward=192),
    "large": EXECUTOR,
}
"""The study's models, of about 0.25, 0.5 and 1.8 million parameters: each speaks every role."""
HEAD_WIDTH = 32


def new_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, max_tokens: int = 2048) -> Qwen3ForCausalLM:
    """A model of `shape` with random weights, fp32."""
    heads = shape.width // HEAD_WIDTH
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD_WIDTH,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=max_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        tie_word_embeddings=True,
        initializer_range=0.02,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)
