"""A miniature Qwen3 model and its tokenizer. The tokenizer is byte-level BPE, with one token for
each digit, and one for each tag of the agents' protocol, such as `<search>`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

VOCABULARY = 1280
"""Max number of tokens in the vocabulary."""
END_OF_TURN = "<|end|>"
END_OF_TEXT = "<|endoftext|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_NAMES = "search answer evidence question request search_results documents title text".split()
_TAGS = (
    *(f"<{slash}{name}>" for name, slash in product(_NAMES, ("", "/"))),
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
    """Size of a mini model: hidden size, layers, and hidden size of the feed-forward layers. Each
    attention head has 32 dimensions.
    """

    width: int
    layers: int
    feed_forward: int


BACKBONE = Shape(width=256, layers=5, feed_forward=640)
"""Size of the model that delegates and answers, with about 4 million parameters."""
EXECUTOR = Shape(width=192, layers=5, feed_forward=288)
"""Size of executors, with about 1.8 million parameters."""
LADDER = {
    "small": Shape(width=64, layers=4, feed_forward=128),
    "medium": Shape(width=96, layers=4, feed_forward=192),
    "large": EXECUTOR,
}
"""Sizes of generalists in the study of model sizes, with about 0.25, 0.5 and 1.8 million
parameters.
"""
HEAD_WIDTH = 32


def new_model(
    shape: Shape, tokenizer: PreTrainedTokenizerFast, max_tokens: int = 2048
) -> Qwen3ForCausalLM:
    """Return a model of this shape with random fp32 weights. `max_tokens`: context length of the
    model.
    """
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
    """Train a tokenizer on `texts`, and return it.

    Each piece of text between tags or line breaks gets a leading space. A name therefore has the
    same tokens everywhere, and a model copies a name by copying these tokens.
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
    """Load the tokenizer of the finished model in `folder`."""
    from transformers import PreTrainedTokenizerFast

    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer
