"""The model of `rolegate bench marl-mini`: a transformer of about 60,000 parameters that plays all
agents, with updates by reinforcement and by imitation.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.marl_mini.world import MAX_TOKENS, PROMPT_TOKENS, STOP, VOCABULARY, Turn
from executor_sft.reinforcement.objective import micro_loss, token_logprobs
from executor_sft.reinforcement.recipe import ObjectiveRecipe

_WIDTH = 56
_LAYERS = 2
_HEADS = 4
_MICRO = 512
"""Max number of turns per forward pass."""


class TinyModel(nn.Module):
    """The transformer, with its optimizer."""

    def __init__(self, rate: float, seed: int) -> None:
        """Create the model. `rate`: learning rate. `seed`: seed of the random weights."""
        torch.manual_seed(seed)
        super().__init__()
        self._tokens = nn.Embedding(VOCABULARY, _WIDTH)
        self._places = nn.Embedding(PROMPT_TOKENS + MAX_TOKENS, _WIDTH)
        layer = nn.TransformerEncoderLayer(
            _WIDTH, _HEADS, 2 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self._layers = nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
        self._logits = nn.Linear(_WIDTH, VOCABULARY)
        self._optimizer = torch.optim.Adam(self.parameters(), lr=rate)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits after each token, of the shape (rows, tokens, vocabulary)."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        states = self._tokens(tokens) + self._places(torch.arange(length))
        logits: Tensor = self._logits(self._layers(states, mask, is_causal=True))
        return logits

    @torch.no_grad()
    def write(
        self,
        role: str,
        prompts: Sequence[Sequence[int]],
        rng: Random,
        *,
        greedy: bool = False,
    ) -> list[Turn]:
        """Return a new turn for each prompt, sampled at temperature 1 or greedily."""
        if not prompts:
            return []
        generator = torch.Generator().manual_seed(rng.randrange(2**40))
        tokens = torch.tensor(prompts)
        chosen = list[Tensor]()
        logprobs = list[Tensor]()
        for _ in range(MAX_TOKENS):
            logits = self(tokens)[:, -1]
            if greedy:
                token = logits.argmax(-1)
            else:
                token = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
            chosen.append(token)
            logprobs.append(token_logprobs(logits, token))
            tokens = torch.cat([tokens, token[:, None]], 1)
        rows = zip(
            prompts,
            torch.stack(chosen, 1).tolist(),
            torch.stack(logprobs, 1).tolist(),
            strict=True,
        )
        turns = []
        for prompt, written, of_tokens in rows:
            length = written.index(STOP) + 1 if STOP in written else MAX_TOKENS
            turns.append(Turn(role, list(prompt), written[:length], of_tokens[:length]))
        return turns

    def update(
        self,
        turns: Sequence[Turn],
        weights: Sequence[float],
    ) -> None:
        """Make one update by reinforcement. `weights`: for each turn, the weight that all tokens of
        the turn get.
        """
        kept = [(turn, weight) for turn, weight in zip(turns, weights, strict=True) if weight != 0]
        for start in range(0, len(kept), _MICRO):
            part = kept[start : start + _MICRO]
            tokens, written = _padded([turn for turn, _ in part])
            new = self._logprobs(tokens)
            old = torch.zeros_like(new)
            weight = torch.zeros_like(new)
            for row, (turn, of_turn) in enumerate(part):
                old[row, : len(turn.tokens)] = torch.tensor(turn.logprobs)
                weight[row, : len(turn.tokens)] = of_turn
            new = torch.where(written, new, old)
            loss: Any = micro_loss(ObjectiveRecipe(), new, old, weight)[0]
            loss.backward()
        if kept:
            self._step()

    def imitate(self, turns: Sequence[Turn]) -> None:
        """Make one update that raises the probability of all tokens of the turns."""
        tokens, written = _padded(turns)
        loss: Any = -(self._logprobs(tokens) * written).sum() / written.sum()
        loss.backward()
        self._step()

    def _logprobs(self, tokens: Tensor) -> Tensor:
        logits = self(tokens[:, :-1])[:, PROMPT_TOKENS - 1 :]
        return token_logprobs(logits, tokens[:, PROMPT_TOKENS:])

    def _step(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def _padded(turns: Sequence[Turn]) -> tuple[Tensor, Tensor]:
    """Return the tokens of prompts and turns, of the shape (turns, `PROMPT_TOKENS + MAX_TOKENS`),
    and a mask of the shape (turns, `MAX_TOKENS`) that is False for padding.
    """
    tokens = torch.tensor(
        [[*turn.prompt, *turn.tokens] + [STOP] * (MAX_TOKENS - len(turn.tokens)) for turn in turns]
    )
    lengths = torch.tensor([len(turn.tokens) for turn in turns])
    return tokens, torch.arange(MAX_TOKENS) < lengths[:, None]
