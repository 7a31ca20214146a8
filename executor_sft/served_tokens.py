"""What the serving engine reads and writes, as token ids."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from router.errors import BadConfig
from router.models.model import Completion, Message, end_at_stop
from router.protocol.prompts import without_system_role
from router.search.executor import STOP

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)
"""Those of a model's folder that decide about token ids, as far as they are there."""
_THOUGHT = "</think>"
_TURN = "what was said"


class _Generation(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


class ServedTokens:
    """The tokens of a conversation as vLLM makes them for `/v1/chat/completions`."""

    def __init__(self, model: Path, *, thinking: bool | None = None, system_role: bool = True) -> None:
        """`model`: its folder. The others: as of the role that serves. Raises `BadConfig`."""
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
        except (OSError, ValueError) as error:
            raise BadConfig(f"{model}: holds no tokenizer that can be loaded ({error}).") from None
        if self._tokenizer.chat_template is None:
            raise BadConfig(f"{model}: its tokenizer has no chat template; add chat_template.jinja.")
        self._model, self._system_role = model, system_role
        self._switch = {} if thinking is None else {"enable_thinking": thinking}
        self._thinks = "<think>" in self._tokenizer.chat_template if thinking is None else thinking

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """What the engine reads before it writes the next turn."""
        return tuple(self._rendered(messages, tokenize=True, add_generation_prompt=True))

    def completion(self, output: Completion) -> tuple[int, ...]:
        """What the engine is to write: the turn up to its last tag, and the template's end of turn. Reasoning stands in
        a thinking block where the role thinks, and is left out where it does not.
        """
        return tuple(self._tokenizer.encode(self._written(output), add_special_tokens=False)) + self._end

    def _written(self, output: Completion) -> str:
        thought, closed, said = output.text.rpartition(_THOUGHT)
        said, _ = end_at_stop(said, STOP, "stop", None)
        if not self._thinks:
            return said.lstrip() if closed else said
        if closed or not output.reasoning.strip():
            return thought + closed + said
        opening = "" if self._thinking_is_open else "<think>\n"
        return f"{opening}{output.reasoning.strip()}\n{_THOUGHT}\n\n{said.lstrip()}"

    @cached_property
    def _thinking_is_open(self) -> bool:
        """Whether the template itself begins the thinking block."""
        prompt: str = self._rendered([Message("user", _TURN)], tokenize=False, add_generation_prompt=True)
        return prompt.rstrip().endswith("<think>")

    @cached_property
    def _end(self) -> tuple[int, ...]:
        """What the template puts after a turn, up to the token at which the engine stops."""
        said = [Message("user", "?"), Message("assistant", _TURN)]
        after = self._rendered(said, tokenize=False).rpartition(_TURN)[2]
        ids = self._tokenizer.encode(after, add_special_tokens=False)
        ends = self._ends
        for place, token in enumerate(ids):
            if token in ends:
                return tuple(ids[: place + 1])
        raise BadConfig(f"{self._model}: its chat template ends turns with {after!r}, at which no engine stops.")

    @property
    def _ends(self) -> set[int]:
        """The tokens at which the engine stops."""
        path = self._model / "generation_config.json"
        told = msgspec.json.decode(path.read_bytes(), type=_Generation).eos_token_id if path.exists() else None
        return {self._tokenizer.eos_token_id, *(told if isinstance(told, list) else [told])} - {None}

    def _rendered(self, messages: Sequence[Message], **how: bool) -> Any:
        sent = messages if self._system_role else without_system_role(messages)
        chat = msgspec.to_builtins(list(sent))
        return self._tokenizer.apply_chat_template(chat, return_dict=False, **how, **self._switch)
