"""Qwen3 in miniature, and its tokenizer: byte-level BPE, the protocol's tags as single tokens,
digits apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

VOCABULARY = 1280
END_OF_TURN = "<|end|>"
END_OF_TEXT = "<|endoftext|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_TAGS = (
    *(
        f"<{slash}{tag}>"
        for tag in ("search", "answer", "evidence", "question", "request")
        for slash in ("", "/")
    ),
    *(
        f"<{slash}{tag}>"
        for tag in ("search_results", "documents", "title", "text")
        for slash in ("", "/")
    ),
    '<result index="',
    "</result>",
    '<document index="',
    "</document>",
    '">',
    "<stop/>Enough evidence<stop>",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] "
    "+ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


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


def new_model(
    shape: Shape, tokenizer: PreTrainedTokenizerFast, max_tokens: int = 2048
) -> Qwen3ForCausalLM:
    """A model of `shape` with random weights, fp32."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

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


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn the merges from `texts`. Every stretch between tags or lines begins with a space, so
    that a name is spelled with the same tokens wherever it stands, and copying it is copying
    tokens.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=True),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [END_OF_TEXT, END_OF_TURN, *_ROLES]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in _TAGS])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(special) - len(_TAGS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a finished model."""
    from transformers import PreTrainedTokenizerFast

    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer
