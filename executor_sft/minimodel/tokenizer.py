"""The mini models' tokenizer: byte-level BPE, the protocol's tags as single tokens, digits apart."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 1280
END_OF_TURN, END_OF_TEXT = "<|end|>", "<|endoftext|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_TAGS = (
    *(f"<{slash}{tag}>" for tag in ("search", "answer", "evidence", "question", "request") for slash in ("", "/")),
    *(f"<{slash}{tag}>" for tag in ("search_results", "documents", "title", "text") for slash in ("", "/")),
    '<result index="',
    "</result>",
    '<document index="',
    "</document>",
    '">',
    "<stop/>Enough evidence<stop>",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn the merges from `texts`. Every stretch between tags or lines begins with a space, so that a name is spelled
    with the same tokens wherever it stands, and copying it is copying tokens."""
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
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
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
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer
