"""The most expensive inputs of a gateway, for `python tests/stall.py
tests/router/edge/stalls.py`.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlencode

import aiohttp
import grpc
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import retrieval_service_pb2 as retrieval_pb
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub
from rolegate.v1.table_service_pb2_grpc import TableServiceStub

from tests.stall import Input, Served

LIGATURE = "\ufdfa"
"""A character that NFKC expands to 18."""
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MULTIPART = {"Content-Type": "multipart/form-data; boundary=x"}
JSON = {"Content-Type": "application/json"}
MARKS = "\u0301\u0323"
"""Combining marks in the wrong order."""


def named(chars: int, unit: str = "column: " + "b," * 6) -> str:
    """Return a question that names columns again and again."""
    return ("a table " + unit * (chars // len(unit) + 1))[:chars]


def posted(path: str, data: Any, headers: Mapping[str, str] | None = None) -> Input:
    """Return an input that posts data to the HTTP server, and returns the reply."""

    async def send(served: Served) -> str:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.post(
                    f"http://{served.http}{path}", data=data, headers=headers
                ) as response:
                    return f"{response.status} {(await response.text())[:200]}"
            except aiohttp.ClientError as error:
                return repr(error)

    return send


def multipart(fields: int) -> str:
    """Return a form with this many fields."""
    parts = (
        f'--x\r\nContent-Disposition: form-data; name="f{number}"\r\n\r\na\r\n'
        for number in range(fields)
    )
    return "".join(parts) + "--x--\r\n"


def got(path: str, headers: Mapping[str, str] | None = None) -> Input:
    """Return an input that gets a path from the HTTP server, and returns the reply."""

    async def send(served: Served) -> str:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{served.http}{path}", headers=headers) as response,
        ):
            return f"{response.status} {(await response.text())[:200]}"

    return send


def chat(content: object, **options: object) -> Input:
    """Return a question over OpenAI's protocol."""
    body = {"model": "rolegate", "messages": [{"role": "user", "content": content}], **options}
    return posted("/v1/chat/completions", json.dumps(body), JSON)


def asked(question: str, columns: str) -> Input:
    """Return a table in the pages' form."""

    async def send(served: Served) -> str:
        async with aiohttp.ClientSession(f"http://{served.http}") as session:
            async with session.get("/ask") as page:
                token = (await page.text()).partition('name="csrf" value="')[2].partition('"')[0]
            form = {"csrf": token, "question": question, "columns": columns}
            async with session.post("/ask", data=form, allow_redirects=False) as response:
                return f"{response.status} {(await response.text())[-200:]}"

    return send


def called(stub: Any, method: str, request: Any, **options: Any) -> Input:
    """Return a gRPC call."""

    async def send(served: Served) -> str:
        async with grpc.aio.insecure_channel(served.grpc) as channel:
            try:
                return str(await getattr(stub(channel), method)(request, **options))[:200]
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name} {error.details()}"

    return send


def table(*columns: pb.Column, rows: Any = (), **fields: Any) -> Input:
    """Return a request for a table over gRPC, up to the start of its run. tests/table_stalls.py
    fills tables to their ends.
    """
    given = [pb.GivenRow(values=row) for row in rows]
    request = pb.FillTableRequest(
        question="cities", columns=columns, rows=given, closed=True, **fields
    )
    return called(TableServiceStub, "FillTable", request)


def held(connections: int) -> Input:
    """Open this many connections of one address; report how many are served, and whether another
    address still is.
    """

    async def send(served: Served) -> str:
        host, _, port = served.http.rpartition(":")
        async with AsyncExitStack() as stack:

            async def is_served(address: str) -> bool:
                try:
                    reader, writer = await asyncio.open_connection(
                        host, int(port), local_addr=(address, 0)
                    )
                    stack.callback(writer.close)
                    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    async with asyncio.timeout(10):
                        return b" 200 " in await reader.readline()
                except OSError:
                    return False

            served_count = 0
            for _ in range(connections // 100):
                served_count += sum(
                    await asyncio.gather(*(is_served("127.0.0.1") for _ in range(100)))
                )
            other_served = await is_served("127.0.0.2")
            return f"{served_count} of {connections} served; another address is: {other_served}"

    return send


NUMBERS = range(1000)
CHOICES = [f"choice number {number}" for number in NUMBERS]
KEY = pb.Column(name="city", key=True)
KIND = pb.Column(name="kind", key=True, type=pb.COLUMN_TYPE_CHOICE, choices=CHOICES)
CITIES = [
    [f"city {number}", f"it is choice number {number % 999}, {number}"] for number in range(2000)
]
INPUTS: dict[str, Input] = {
    "idle": chat("When was Heat made?"),
    "1 columns, 4 kB, OpenAI": chat(named(3988), model="rolegate-table"),
    "1 columns, 160 kB, OpenAI": chat(named(160_000), model="rolegate-table"),
    "1 columns, 4 kB, form": asked("q", named(3988)),
    "1 columns, 160 kB, form": asked("q", named(160_000)),
    "1 commas and parentheses, 4 kB": chat(named(4000, "columns: (,"), model="rolegate-table"),
    "1 ligatures as names, 4 kB": chat(
        named(4000, "column: " + f"{LIGATURE}," * 60), model="rolegate-table"
    ),
    "2 choices by rows": table(KEY, KIND, rows=CITIES),
    "2 choices by rows, many columns": table(
        *(
            pb.Column(name=f"kind {n}", key=True, type=pb.COLUMN_TYPE_CHOICE, choices=CHOICES[:60])
            for n in range(16)
        ),
        rows=[[f"choice number {n}?"] * 16 for n in range(2000)],
    ),
    "2 choices that expand": table(
        KEY,
        pb.Column(
            name="kind",
            key=True,
            type=pb.COLUMN_TYPE_CHOICE,
            choices=[f"{LIGATURE * 300}{number}" for number in range(1000)],
        ),
        rows=[[f"city {number}", LIGATURE * 300] for number in range(200)],
    ),
    "2 values that expand": table(
        KEY, rows=[[f"{LIGATURE * 200}{number}"] for number in range(2000)]
    ),
    "2 values that expand, long": table(KEY, rows=[[LIGATURE * 450_000]]),
    "2 choices in one value": table(
        KEY,
        pb.Column(
            name="kind", key=True, type=pb.COLUMN_TYPE_CHOICE, choices=[f"a{n}" for n in NUMBERS]
        ),
        rows=[[f"city {n}", " ".join(f"a{m}" for m in range(200))] for n in range(1000)],
    ),
    "2 more rows than may be": table(KEY, KIND, rows=CITIES * 4),
    "2 700,000 values": table(KEY, rows=[[""] * 70 for _ in range(10_000)]),
    "2 names that expand": table(
        *(
            pb.Column(
                name=f"{LIGATURE * 300}{n}", key=n < 32, ask=f"Who has {{{LIGATURE * 300}0}}?"
            )
            for n in range(64)
        ),
        rows=[[LIGATURE]],
    ),
    "2 marks in the wrong order": table(
        KEY, rows=[[f"{MARKS * 150}{number}"] for number in range(2000)]
    ),
    "6 multipart, 1,000 fields": posted("/sign-in", multipart(1000), MULTIPART),
    "6 urlencoded, 100,000 fields": posted(
        "/sign-in", "&".join(f"a{n}=b" for n in range(100_000)), FORM
    ),
    "6 urlencoded, 1 MiB of escapes": posted("/sign-in", "csrf=" + "%41" * 349_000, FORM),
    "6 multipart, 1 MiB, feedback": posted("/runs/run-1/feedback", multipart(10_000), MULTIPART),
    "6 urlencoded, 1 MiB of escapes, ask": posted("/ask", "question=" + "%41" * 349_000, FORM),
    "7 connections of one address": held(4200),
    "o JSON, deeply nested": posted(
        "/v1/chat/completions", b'{"model": "rolegate", "x": ' + b"[" * 1_000_000, JSON
    ),
    "o JSON, nested in what is read": posted(
        "/v1/chat/completions", b'{"model": "rolegate", "tool_choice": ' + b'{"a":' * 200_000, JSON
    ),
    "o JSON, 80,000 keys": posted(
        "/v1/chat/completions", "{" + ",".join(f'"k{n}":{n}' for n in range(70_000)) + "}", JSON
    ),
    "o 30,000 messages": posted(
        "/v1/chat/completions",
        '{"model":"rolegate","messages":['
        + '{"role":"user","content":"a"},' * 34_000
        + '{"role":"user"}]}',
        JSON,
    ),
    "o 30,000 parts": posted(
        "/v1/chat/completions",
        '{"model":"rolegate","messages":[{"role":"user","content":['
        + '{"type":"text","text":""},' * 39_000
        + '{"type":"text","text":"a"}]}]}',
        JSON,
    ),
    "o tools and a response_format of 1 MB": chat(
        "Hello?", tool_choice="auto", response_format={"a": [{"b": n} for n in range(90_000)]}
    ),
    "o a tool_choice of 340,000 lists": posted(
        "/v1/chat/completions",
        '{"model":"rolegate","messages":[{"role":"user","content":"a"}],"tool_choice":['
        + "[]," * 340_000
        + "[]]}",
        JSON,
    ),
    "o a question of 1 MB": chat("a" * 1_000_000),
    "o a question of marks": chat((MARKS * 2000)[:3999]),
    "o a question of marks, table": chat(
        "a table, columns: " + ",".join([MARKS * 900] * 2), model="rolegate-table"
    ),
    "o a query string": got("/runs?" + "&".join(f"a{n}={n}" for n in range(800))),
    "o a date of digits": got("/runs?since=" + "1" * 7000),
    "o cookies": got("/runs", {"Cookie": "; ".join(f"a{n}=" for n in range(1100))}),
    "o quoted cookies": got("/runs", {"Cookie": 'a="' + "\\" * 7900}),
    "o a Host": got("/health", {"Host": "1." * 3900}),
    "o completions": called(
        CompletionServiceStub,
        "Complete",
        completion_pb.CompleteRequest(
            role="ROLE_DELEGATION",
            messages=[completion_pb.ChatMessage(role="user", content=MARKS * 300)] * 1000,
        ),
    ),
    "o queries": called(
        RetrievalServiceStub,
        "Search",
        retrieval_pb.SearchRequest(queries=[MARKS * 1000] * 256, top_k=1),
    ),
    "o a page token": called(
        TableServiceStub, "GetTable", pb.GetTableRequest(run_id="run-1", page_token="9" * 1024)
    ),
    "o metadata": called(
        TableServiceStub,
        "GetTable",
        pb.GetTableRequest(run_id="a"),
        metadata=[(f"k{n}", "v") for n in range(200)],
    ),
    "o form, urlencoded": posted(
        "/sign-in", urlencode({"csrf": "x", "key": "rg-" + "a" * 8000}), FORM
    ),
}
