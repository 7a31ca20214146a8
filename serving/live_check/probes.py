"""A few small questions to a role's model, as the gateway itself would ask them, and what the answers show."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp
import msgspec

from router.calls.role import Role
from router.errors import JSON_ERRORS, UpstreamError, UpstreamGarbled, UpstreamUnavailable
from router.ledger.ledger import Ledger
from router.models.model import Completion, Message, Usage
from router.models.session import read_body
from router.protocol.tags import without_thinking
from router.trace.call import RoleName
from serving.config.config import RoleConfig
from serving.live_check.cell import GOOD, Cell, Cells, failed
from serving.live_check.estimate import Measured
from serving.live_check.protocol import TURNS, Turn, protocol


class _Model(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None
    """vLLM's: what the model reads and writes at most, in tokens."""


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...]


Served = Mapping[str, int | None] | None


async def served_models(session: aiohttp.ClientSession, base_url: str, key: str | None) -> Served:
    """The context of each model, by name, in tokens, where it is told; None where the endpoint keeps no such list."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=10)
    try:
        async with session.get(f"{base_url.rstrip('/')}/models", headers=headers, timeout=timeout) as response:
            models = msgspec.json.decode(await read_body(response), type=_Models)
    except (aiohttp.ClientError, OSError, ValueError, *JSON_ERRORS):
        return None
    return {model.id: model.max_model_len for model in models.data}


_REPEAT = "Repeat this line: one two three four five six seven eight nine ten"
_REPEAT_STOP = ("e", "o")  # whatever a model says instead, it can hardly say it without them
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": _SCHEMA}}


@dataclass(frozen=True, slots=True)
class RoleProbe:
    """Probes one role, with a limit in seconds for each question."""

    name: RoleName
    config: RoleConfig
    make: Callable[[RoleConfig], Role]
    """Builds the role from its section."""
    served: Served
    limit_s: float

    async def run(self) -> tuple[Cells, Measured]:
        """The cells, and how many tokens the role takes; of a role that fails, the cell that says why."""
        turns = TURNS[self.name]
        role = self.make(self.config)
        measured = Measured(len(role.system))
        try:
            turn = await self._take(turns[0])
        except UpstreamError as error:
            return await self._refusal(error), measured
        followed, stops, streamed, schema = await asyncio.gather(
            protocol(turn, turns, self._take), self._stops(), self._streamed(), self._schema()
        )
        if turn.usage is not None:
            chars = sum(len(message.content) for message in role.opening(turns[0].text))
            a_token = chars / max(1, turn.usage.prompt_tokens)
            measured = Measured(measured.system_chars, a_token, turn.usage.completion_tokens)
        return {
            "reachable": GOOD,
            "model": GOOD,
            "protocol": followed,
            "stops": stops,
            "thinking": self._thinking(turn),
            "usage": _usage(turn.usage, "its answers come without usage: their tokens are booked as unknown"),
            "streamed usage": streamed,
            "schema": schema,
        }, measured

    async def _take(self, turn: Turn) -> Completion:
        return await self._ask(self.config, turn.text, turn.stop, turn.then, turn.pattern)

    async def _ask(
        self,
        config: RoleConfig,
        text: str,
        stop: tuple[str, ...],
        then: tuple[Message, ...] = (),
        pattern: str | None = None,
    ) -> Completion:
        role = self.make(msgspec.structs.replace(config, attempts=1))
        try:
            async with asyncio.timeout(self.limit_s):
                return await role.ask((*role.opening(text), *then), stop, Ledger(), pattern=pattern)
        except TimeoutError:
            said = f"no answer within {self.limit_s:g} s; if it is still loading, allow more with --timeout"
            error = UpstreamUnavailable(said, endpoint=role.model.endpoint)
            error.role = self.name
            raise error from None

    async def _stops(self) -> Cell:
        try:
            said = await self._ask(self.config, _REPEAT, _REPEAT_STOP)
        except UpstreamError as error:
            return Cell(None, "failed", f"stop strings: {error.args[0]}")
        if said.overran:
            advice = "stop strings are ignored: the gateway cuts what is written past them, but you pay for it"
            return Cell(False, "ignored", f"{advice}; a server and a model that honour them are cheaper and quicker")
        return Cell(None, "unknown") if said.finish_reason == "length" else Cell(True, "honoured")

    def _thinking(self, turn: Completion) -> Cell:
        text = without_thinking(turn.text)
        inline = text != turn.text
        if turn.finish_reason == "length":
            advice = f"a turn was cut off after {self.config.max_tokens} tokens, thinking included"
            advice += f"; raise roles.{self.name}.max_tokens, or have it think less"
            return Cell(False, "cut off", advice, needed=not text.strip())
        if self.config.thinking is False and (inline or turn.reasoning):
            advice = "answers with <think> in the text" if inline else "thinks"
            advice += (
                " although thinking = false: its server does not know that; say it in extra_body, in its own words"
            )
            return Cell(False, "not off", advice)
        if inline:
            advice = "answers with <think> in the text, which the gateway leaves out; better, serve it with a reasoning"
            return Cell(False, "in the text", f"{advice} parser (vLLM: --reasoning-parser), or set thinking = false")
        return Cell(True, "separate" if turn.reasoning else "none")

    async def _streamed(self) -> Cell:
        role, usage = self.make(self.config), None
        first = TURNS[self.name][0]
        try:
            async with asyncio.timeout(self.limit_s):
                async for delta in role.stream(role.opening(first.text), first.stop, Ledger()):
                    usage = delta.usage or usage
        except (UpstreamError, TimeoutError) as error:
            return Cell(False, "failed", f"cannot be streamed, as all but LiteLLM's models are: {error!r}")
        return _usage(usage, "its streams come without usage: their tokens are booked as unknown")

    async def _schema(self) -> Cell:
        extra = {**self.config.extra_body, "response_format": _FORMAT}
        try:
            asked = msgspec.structs.replace(self.config, extra_body=extra)
            said = await self._ask(asked, "Name any city, as JSON.", ())
            if said.finish_reason == "length":
                return Cell(None, "unknown")
            if "city" in json.loads(without_thinking(said.text)):
                return Cell(True, "followed")
        except (UpstreamError, ValueError, TypeError):
            pass  # refused, or answered in words: both mean that it follows none
        return Cell(False, "not followed", "follows no JSON schema; the roles do without")

    async def _refusal(self, error: UpstreamError) -> Cells:
        """What the first failure means, and what to do."""
        said = f"{error.args[0]} ({error.endpoint})"
        status = found[1] if (found := re.search(r"HTTP (\d{3})", said)) else ""
        if status in ("401", "403"):
            variable = self.config.api_key_env
            do = f"export {variable}" if variable else f"name its variable in roles.{self.name}.api_key_env"
            return {"reachable": failed("wrong key", f"{said}; {do}")}
        if status == "404" and self.served is not None:
            there = ", ".join([*self.served][:8]) or "nothing"
            return {
                "reachable": GOOD,
                "model": failed("unknown", f"{self.config.model} is not there; there is: {there}"),
            }
        if isinstance(error, UpstreamGarbled) or status in ("404", "405"):
            do = "this speaks no OpenAI protocol: check the model's name, and that base_url ends in /v1"
            return {"reachable": failed("no OpenAI", f"{do}; {said}")}
        if isinstance(error, UpstreamUnavailable):
            return {"reachable": failed("no", f"{said}; see that it runs and can be reached from here")}
        word = "refused"
        if self.config.system_role and await self._works_without_system_role():
            word, said = "no system role", f"it refuses the system role; set roles.{self.name}.system_role = false"
        return {"reachable": GOOD, "model": failed(word, said)}

    async def _works_without_system_role(self) -> bool:
        try:
            first = TURNS[self.name][0]
            await self._ask(msgspec.structs.replace(self.config, system_role=False), first.text, first.stop)
        except UpstreamError:
            return False
        return True


def _usage(usage: Usage | None, advice: str) -> Cell:
    return Cell(True, "counted") if usage else Cell(False, "none", advice)
