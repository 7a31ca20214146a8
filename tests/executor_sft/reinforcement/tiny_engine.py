"""An engine of a model with a dozen tokens, each of which is a whole turn. It samples with seeds,
returns token ids and log-probabilities, and loads adapters like vLLM.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from aiohttp import web

from router.edge.grpc.server import Server
from router.models import Message, Prompt, Sampling
from serving.retrieval.services import RetrievalServicer
from tests.executor_sft.scripted_roles import OnePage, answers
from tests.openai_server import fails, hang, says, served
from tests.router.deployment import STOP, block, report
from tests.router.unfiltered import Unfiltered

TOKENS = 12
SEARCH, TWO, RIGHT = 4, 4, 5
_PROMPTS = {"delegation": "delegate", "execution": "execute", "answer": "repeat"}


def write_base(folder: Path, hidden: int = 64) -> Path:
    """Write a base model of 60,000 weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=hidden,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class TinyEngine:
    """State of the engine: its adapters, and the calls that it has answered."""

    def __init__(self, base: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._base = base
        self.models: dict[str, Any] = {"base": AutoModelForCausalLM.from_pretrained(base)}
        """Models and adapters by name."""
        self.loaded: list[str] = []
        """Names of all adapters that were ever loaded."""
        self.answered = Counter[str]()
        """Calls that were answered, by model, seed and messages."""
        self.free = 10**6
        """Number of calls that are answered; the others are held."""
        self.held = asyncio.Event()
        self.tells = True
        """Whether it returns token ids and log-probabilities."""
        self.refused = range(0)
        """Numbers of the calls that are refused."""
        self.calls = 0
        self.shift = 0.0
        """Added to all log-probabilities that are returned."""

    async def play(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        messages: list[Mapping[str, str]] = body["messages"]
        if self.free == 0:
            self.held.set()
            return await hang(request)
        self.free -= 1
        self.calls += 1
        if self.calls in self.refused:
            return await fails(400, "unwanted content")(request)
        self.answered[f"{body['model']} {body.get('seed')} {messages}"] += 1
        if body["model"] == "answerer":
            prompt = Prompt(msgspec.convert(messages, tuple[Message, ...]), Sampling())
            return await says(answers(prompt))(request)
        ids = prompt_ids(messages)
        token, logprob = self._sample(self.models[body["model"]], ids, body.get("seed") or 0)
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": turn(messages, token)},
            "finish_reason": "stop",
        }
        if not (self.tells and "logprobs" in body):
            return web.json_response({"choices": [choice]})
        logprobs = {"content": [{"logprob": logprob + self.shift}]}
        choice |= {"token_ids": [token], "logprobs": logprobs}
        return web.json_response({"choices": [choice], "prompt_token_ids": ids})

    def _sample(self, model: Any, ids: Sequence[int], seed: int) -> tuple[int, float]:
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        random = torch.Generator().manual_seed(seed)
        token = int(torch.multinomial(logprobs.exp(), 1, generator=random))
        return token, float(logprobs[token])

    async def served_models(self, request: web.Request) -> web.Response:
        cards = [{"id": name, "parent": None if name == "base" else "base"} for name in self.models]
        return web.json_response({"data": cards})

    async def load(self, request: web.Request) -> web.Response:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        asked = await request.json()
        base = AutoModelForCausalLM.from_pretrained(self._base)
        self.models[asked["lora_name"]] = PeftModel.from_pretrained(base, asked["lora_path"])
        self.loaded.append(asked["lora_name"])
        return web.Response()

    async def unload(self, request: web.Request) -> web.Response:
        self.models.pop((await request.json())["lora_name"], None)
        return web.Response()


def prompt_ids(messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Return the token ids of a prompt. Turns before have the tokens that were sampled."""
    ids: list[int] = []
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            ids.append(SEARCH)
        elif message["role"] == "system":
            ids.append(int(message["content"].startswith("execute")))
        else:
            ids.append(2 + (number > 1))
    return ids


def turn(messages: Sequence[Mapping[str, str]], token: int) -> str:
    """Return the text of a token. A delegator asks one executor, or two; an executor searches, and
    reports the right answer or a wrong one.
    """
    if len(messages) == 1:  # a probe
        return ""
    asked = messages[1]["content"]
    if messages[0]["content"].startswith("delegate"):
        sub_queries = [asked, f"Really, {asked}"] if token == TWO else [asked]
        return block(*sub_queries) if len(messages) == 2 else STOP
    if len(messages) == 2:
        return f"<search>{asked}</search>"
    film = asked.removesuffix("?").split()[-1]
    return report(f"Mann{film}" if token == RIGHT else "Pacino", "It says so.")


def write_questions(folder: Path, count: int = 4) -> Path:
    path = folder / "questions.jsonl"
    rows = [
        {"id": f"q{number}", "question": f"Who directed F{number}?", "answer": f"MannF{number}"}
        for number in range(count)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


@asynccontextmanager
async def tiny_world(folder: Path) -> AsyncIterator[TinyEngine]:
    """Serve an engine, and write `config.toml`, `questions.jsonl` and the model in `base`."""
    engine = TinyEngine(write_base(folder / "base"))
    write_questions(folder)
    routes = (
        web.post("/v1/chat/completions", engine.play),
        web.get("/v1/models", engine.served_models),
        web.post("/v1/load_lora_adapter", engine.load),
        web.post("/v1/unload_lora_adapter", engine.unload),
    )
    async with served(*routes) as url:
        server = Server(None, RetrievalServicer(Unfiltered(OnePage())))
        port = await server.start("127.0.0.1:0")
        parts = ['[server]\nstore = "sqlite:///runs.db"']
        for role, text in _PROMPTS.items():
            (folder / f"{role}.txt").write_text(text, "utf-8")
            model = "answerer" if role == "answer" else "base"
            parts.append(
                f'[roles.{role}]\nmodel = "{model}"\nprompt = "{role}.txt"\nattempts = 1\n'
                f'base_url = "{url}"'
            )
        parts.append(f'[retrieval]\naddress = "127.0.0.1:{port}"')
        (folder / "config.toml").write_text("\n".join(parts), "utf-8")
        yield engine
        await server.drain(0)
