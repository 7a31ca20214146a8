"""Gateways as processes of their own, asked over gRPC and HTTP, and what is on record of their
runs afterwards.
"""

import asyncio
import hashlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import tomlkit

from tests.contract.scenarios import SCENARIOS, Scenario, Step
from tests.contract.upstream import MODELS, Upstream
from tests.contract.wire import Json, RPCError, Wire

CONFIGS = Path(__file__).parent / "gateways.toml"
ROOT = Path(__file__).parents[2]
MAIN = "import sys; from serving.cli.main import main; sys.exit(main())"
_STARTING_S = 180.0
_ENDED_S = 10.0
_SETTLING_S = 0.5
_VOLATILE = {
    r'"\d{4}-\d\d-\d\dT[\d:.]+Z"': '"<time>"',
    r'"\d+(\.\d+)?s"': '"<duration>"',
    r'("retry_after_s": )"[\d.]+"': r'\1"<seconds>"',
    r'("key_id": )"[0-9a-f]{8}"': r'\1"<key>"',
    r'("created": )\d+': r'\1"<time>"',
    r"\b(chatcmpl|feedback)-[0-9a-f]+": r"<\1>",
}
"""What is different each time, and what stands for it."""
_SAID = ("text", "finish_reason")
_EXECUTION = (
    "sub_query outcome report.answer report.evidence searches.query searches.passages.id "
    "searches.ignored_queries "
    "searches.dropped_passages conversation.outputs.text "
    "conversation.outputs.finish_reason executor shared_from"
)
TRACE = (
    *"status result.answer result.outcome result.topology result.rounds".split(),
    *(
        "result.searches.query result.searches.passages.id result.delegation.outputs.reasoning"
    ).split(),
    *(
        f"result.{said}.{each}"
        for said in ("delegation.outputs", "answering.outputs", "outputs")
        for each in _SAID
    ),
    *(
        f"{place}.{field}"
        for place in ("result", "result.executions")
        for field in _EXECUTION.split()
    ),
)
"""Of a run's trace; where a list is on the way, the field of each of its entries."""
ROWS = ("calls.number", "calls.sub_query_index", "calls.max_tokens", "calls.reserved.tokens")
"""What the trace says of each row of the ledger beyond `GetRun`."""


def config_of(name: str, upstream: Upstream) -> Json:
    """A gateway's config, by dotted keys."""
    text = (
        CONFIGS.read_text("utf-8")
        .replace("$upstream", upstream.url)
        .replace("$retrieval", upstream.retrieval)
    )
    tables = tomllib.loads(text)
    return {**tables["all"], **tables[name]}


def write_config(folder: Path, config: Json) -> Path:
    """Write the config's file and all the files that it names."""
    tables: Json = {}
    for key, value in config.items():
        *sections, last = key.split(".")
        table = tables
        for section in sections:
            table = table.setdefault(section, {})
        table[last] = value
    for name in ("delegation", "execution", "answer"):
        (folder / f"{name}.txt").write_text(f"You are the {name}.\n")
    words = [scenario.name for scenario in SCENARIOS]
    (folder / "scope.txt").write_text("\n".join(["a", "b", "is", "it", *words]) + "\n\nwhich one\n")
    _publish(folder / "versions" / "executor-000001")
    file = folder / "rolegate.toml"
    file.write_text(tomlkit.dumps(tables))
    return file


def _publish(folder: Path) -> None:
    """A version of the executor, of one file."""
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    manifest = {
        **{
            "format": 1,
            "version": folder.name,
            "kind": "adapter",
            "base_model": MODELS["execution"],
        },
        **{"base_sha256": "", "rank": 8, "recipe": {}, "data": {}, "git_revision": ""},
        "created_at": "2026-01-01T00:00:00Z",
        "files": {"adapter_model.safetensors": hashlib.sha256(b"weights").hexdigest()},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


class Gateway:
    """A gateway that runs, and who asks it."""

    def __init__(self, upstream: Upstream, config: Path, keys: dict[str, str]) -> None:
        """`keys`: what is sent for each name of a key; without any, nothing."""
        self.config = config
        self._upstream = upstream
        self._keys = keys
        self.address = self.http = self.metrics = ""
        self.fetched: set[str] = set()
        """The routes that were asked."""
        self._seen: set[str] = set()
        self._log: list[str] = []

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'protos'}"}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MAIN, "serve", "--config", str(self.config)),
            cwd=self.config.parent,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read(ready))
        async with asyncio.timeout(_STARTING_S):
            await ready.wait()
        assert self.address, "".join(self._log)
        self._channel = grpc.aio.insecure_channel(self.address)
        self._session = aiohttp.ClientSession()
        self.wire = Wire(self._channel)

    async def _read(self, ready: asyncio.Event) -> None:
        """Find out from the log where it listens, and go on reading it."""
        assert self._process.stdout
        async for line in self._process.stdout:
            said = line.decode()
            self._log.append(said)
            if ready.is_set():
                continue
            if found := re.search(r"http://(127\.0\.0\.1:\d+)/metrics", said):
                self.metrics = found[1]
            elif found := re.search(r"http://(127\.0\.0\.1:\d+)/v1", said):
                self.http = found[1]
            elif found := re.search(r"ready\b.*?(127\.0\.0\.1:\d+)", said):
                self.address = found[1]
                ready.set()
        ready.set()

    async def close(self) -> str:
        """Stop it; its log."""
        await self._channel.close()
        await self._session.close()
        self._process.terminate()
        async with asyncio.timeout(_STARTING_S):
            await self._process.wait()
            await self._reading
        return "".join(self._log)

    async def play(self, scenario: Scenario, expected: int | None) -> Json:
        """What comes of a scenario, without all that is different each time. `expected`: how many
        runs it has; None where that is not known yet.
        """
        self._upstream.scripts[scenario.name] = scenario.says
        steps = [self._step(step, scenario.name) for step in scenario.steps]
        results = (
            [*await asyncio.gather(*steps)] if scenario.together else [await step for step in steps]
        )
        ids = await self._ended(scenario, expected)
        runs = [await self._on_record(run_id) for run_id in ids]
        played = {"steps": results, "runs": runs, "upstream": self._asked(scenario.name)}
        await self._calm(scenario)
        return self._plain(played, ids)

    async def _calm(self, scenario: Scenario) -> None:
        """After failures, let every role succeed once, so that no scenario sees the breakers of
        another.
        """
        for role in (
            ("ROLE_DELEGATION", "ROLE_EXECUTION", "ROLE_ANSWER")
            if scenario.gateway == "faults"
            else ()
        ):
            request = {"role": role, "messages": [{"role": "user", "content": "calm"}]}
            for attempts_left in (2, 1, 0):
                try:
                    await self.wire.call("CompletionService/Complete", request)
                    break
                except RPCError:  # a busy machine may take longer than a token may
                    if not attempts_left:
                        raise

    def _metadata(self, key: str) -> Sequence[tuple[str, str]]:
        sent = self._keys.get(key)
        return [("authorization", f"Bearer {sent}")] if sent else []

    async def _step(self, step: Step, scenario: str) -> Json:
        if step.when:
            await self._upstream.seen(scenario, *step.when)
        text = json.dumps(step.request)
        if "$run" in text:
            text = text.replace("$run", (await self._tagged(f"@{scenario}"))[0]["run_id"])
        asking = asyncio.create_task(self._made(step, json.loads(text)))
        if step.leaves:
            await self._upstream.seen(scenario, *step.leaves)
            asking.cancel()
            await asyncio.wait([asking])
            return {"left": True}
        result = await asking
        while step.until not in json.dumps(result):
            await asyncio.sleep(0.05)
            result = await self._made(step, json.loads(text))
        return shape_of(result) if step.shape else result

    async def _made(self, step: Step, request: Json) -> Json:
        if step.rpc.startswith(("GET ", "POST ")):
            return await self._fetch(step, request)
        metadata = self._metadata(step.key)
        try:
            if "Stream" not in step.rpc and step.rpc.split("/")[1] not in (
                "WatchRun",
                "ExportRuns",
            ):
                return await self.wire.call(
                    step.rpc, request, timeout_s=step.timeout_s, metadata=metadata
                )
            streamed = self.wire.stream(
                step.rpc, request, timeout_s=step.timeout_s, metadata=metadata
            )
            events = [event async for event in streamed]
        except RPCError as error:
            told = {
                "code": error.code,
                "reason": error.reason,
                "metadata": error.metadata,
                "retries": error.retries,
            }
            return {"error": told}
        if step.rpc.endswith("StreamComplete"):  # how it is cut into pieces is nobody's promise
            texts = {
                name: "".join(event.get(name, "") for event in events)
                for name in ("text", "reasoning")
            }
            return {"events": [{**events[-1], **texts}]}
        return {"events": events}

    async def _fetch(self, step: Step, request: Json) -> Json:
        self.fetched.add(step.rpc)
        verb, path = step.rpc.split()
        body = request if verb == "POST" else None
        headers = dict(self._metadata(step.key))
        async with self._session.request(
            verb, f"http://{self.http}{path}", headers=headers, json=body
        ) as response:
            said = await response.text()
            found: Json = {
                "status": response.status,
                "retry_after": "Retry-After" in response.headers,
            }
        if response.content_type == "text/event-stream":
            events = [
                line.removeprefix("data: ")
                for line in said.splitlines()
                if line.startswith("data: ")
            ]
            return {
                **found,
                "events": [json.loads(event) if event != "[DONE]" else event for event in events],
            }
        return {**found, "body": _without_texts(json.loads(said))}

    async def _tagged(self, tag: str, kind: str = "RUN_KIND_UNSPECIFIED") -> list[Json]:
        """The runs of a scenario, the newest first; what is not named is of a tenant whose
        texts are not kept.
        """
        request = {"page_size": 30, "kind": kind}
        found = await self.wire.call("RunService/ListRuns", request, metadata=self._metadata(""))
        fresh = [run for run in found["runs"] if run["run_id"] not in self._seen]
        return [run for run in fresh if not run["request"] or f"{tag} " in run["request"]]

    async def _ended(self, scenario: Scenario, expected: int | None) -> list[str]:
        """The scenario's runs, the oldest first, once all have ended; fewer than expected where
        no more come.
        """
        tag = f"@{scenario.name}"
        found = list[Json]()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDED_S):
                if expected is None:
                    await asyncio.sleep(_SETTLING_S)
                while True:
                    found = await self._tagged(tag)
                    running = any(run["status"] == "RUN_STATUS_RUNNING" for run in found)
                    if len(found) >= (expected or 0) and not running:
                        break
                    await asyncio.sleep(0.02)
        shadows = await self._tagged(tag, "RUN_KIND_SHADOW") if scenario.shadows else []
        if shadows:
            await asyncio.sleep(_SETTLING_S)  # the gate says something of them
        ids = [run["run_id"] for run in (*reversed(found), *shadows)]
        self._seen.update(ids)
        return ids

    async def _on_record(self, run_id: str) -> Json:
        """A run's summary, its sums, the rows of its ledger in order, and what its trace holds."""
        request = {"run_id": run_id, "include_trace": True}
        whole = await self.wire.call("RunService/GetRun", request, metadata=self._metadata(""))
        trace = json.loads(whole.pop("trace_json"))
        told = {path: at for path in ROWS if (at := found_at(trace, path)) is not None}
        rows = [
            {**call, **{path.split(".", 1)[1]: column[number] for path, column in told.items()}}
            for number, call in enumerate(whole.pop("calls"))
        ]
        # What is worked on at the same time is booked in any order.
        rows.sort(
            key=lambda row: (
                row.get("sub_query_index") is not None,
                row.get("sub_query_index") or 0,
                row.get("number") or 0,
            )
        )
        for row in rows:
            row.pop("number", None)
            row["call_id"] = row["call_id"].rpartition("-")[0]
        whole["failed"] = bool(whole.pop("error"))
        return {
            **whole,
            "calls": rows,
            "trace": {path: at for path in TRACE if (at := found_at(trace, path))},
        }

    def _asked(self, scenario: str) -> list[Json]:
        """What models were asked: of a conversation that goes on, only what is new."""
        asked = self._upstream.asked[scenario]
        asked.sort(
            key=lambda call: (list(MODELS).index(call["place"]), call["letter"], call["number"])
        )
        shown: list[Json] = []
        before: list[Any] = []
        for call in asked:
            messages = [[message["role"], message["content"]] for message in call["messages"]]
            same = next(
                (n for n, (a, b) in enumerate(zip(messages, before, strict=False)) if a != b),
                len(before),
            )
            same = min(same, len(messages))
            before = messages
            shown.append(
                {**call, "messages": [f"{same} as before", *messages[same:]] if same else messages}
            )
        return shown

    def _plain(self, played: Json, ids: Sequence[str]) -> Json:
        text = json.dumps(played, ensure_ascii=False)
        for number, run_id in enumerate(ids, 1):
            text = text.replace(run_id, f"run-{number}")
        text = text.replace("/delegation2/", "/delegation/").replace(
            self._upstream.url, "<upstream>"
        )
        for pattern, instead in _VOLATILE.items():
            text = re.sub(pattern, instead, text)
        plain: Json = json.loads(text)
        return plain


def found_at(trace: Any, path: str) -> Any:
    """What stands at a place of a trace; None where nothing does."""
    return _walked(trace, path.split("."))


def _walked(value: Any, keys: Sequence[str]) -> Any:
    if isinstance(value, list):
        found = [_walked(each, keys) for each in value]
        return found if any(each is not None for each in found) or not keys else None
    if not keys:
        return value
    return (
        _walked(value[keys[0]], keys[1:]) if isinstance(value, dict) and keys[0] in value else None
    )


def _without_texts(body: Any) -> Any:
    """A reply without the words of an error, which are for people."""
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        return {"error": {**body["error"], "message": bool(body["error"]["message"])}}
    return body


def shape_of(value: Any) -> Any:
    """Keys and types of JSON; of a list, what its entries have in common and apart."""
    if isinstance(value, dict):
        return {key: shape_of(each) for key, each in value.items()}
    if isinstance(value, list):
        merged: Any = None
        for each in value:
            merged = _merged(merged, shape_of(each))
        return [] if merged is None else [merged]
    return "null" if value is None else type(value).__name__


def _merged(one: Any, other: Any) -> Any:
    if one is None or one == other:
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            key: _merged(one.get(key), other[key]) if key in other else one[key]
            for key in {**one, **other}
        }
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])] if one and other else one or other
    return "|".join(sorted({*str(one).split("|"), *str(other).split("|")}))
