"""Objects in the form of a JSON schema, through OpenAI's official Python client and over HTTP."""

import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from jsonschema import validate
from pydantic import BaseModel, Field

from router.edge.http.object_format import object_format
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.errors import BadRequest
from router.models import Prompt
from router.protocol import Passage
from tests.router.accounts import open_access
from tests.router.table.small_world import ENOUGH, World, gateway, written
from tests.scripted_model import ScriptedModel

QUESTION = "Which city of the register is the first, and what is known of it?"


class Size(Enum):
    """Sizes of a city."""

    SMALL = "small"
    LARGE = "large"


class City(BaseModel):
    """A flat object with all types of properties."""

    name: str
    founder: str | None = Field(description="the person who founded the city")
    founded: int
    area: float
    walled: bool
    size: Size
    chartered: date | None
    kind: Literal["city", "town"] | None


class Founding(BaseModel):
    """An object with two required properties."""

    founder: str
    founded: int


class Listed(BaseModel):
    """A row of a list of cities."""

    city: str
    founder: str | None
    founded: int


class Cities(BaseModel):
    """A list of cities."""

    cities: list[Listed]


PAGE = (
    "Krua is a city. Krua was founded in 1,043 by Ana Torrin. Its area is 12.50 km2. "
    "It was chartered on 3 May 1101. Krua is a big city with a wall around it."
)
FACTS = {
    "name": "Krua",
    "founder": "Ana Torrin",
    "founded": "1,043",
    "area": "12.50 km2",
    "walled": "yes",
    "size": "Large",
    "chartered": "3 May 1101",
    "kind": "not found",
}


class OneCity:
    """A retriever that finds the page of one city."""

    async def search(
        self, queries: Any, top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        return [[Passage("Krua", "Krua", PAGE, document="krua.txt")] for _ in queries]


def plans(prompt: Prompt) -> str:
    """Ask which city it is, and how to ask for its founder; then stop."""
    if len(prompt.messages) > 2:
        return ENOUGH
    ask = '<ask column="founder">Who founded the city {subject}?</ask>'
    return f'<search>["Which city is the first of the register?"]</search>{ask}'


def reads(facts: Mapping[str, str]) -> ScriptedModel:
    """Return a model of executors that reports these facts of the city."""

    def turn(prompt: Prompt) -> str:
        asked = prompt.messages[1].content
        if len(prompt.messages) == 2:
            return f"<search>{asked}</search>"
        if "first of the register" in asked:
            return written("Krua")
        wanted = re.findall(r"^- (\w+): ", asked, re.MULTILINE)
        if not wanted:
            wanted = [name for name in facts if re.search(rf"\b{name}|Who {name}", asked)]
            return written(facts[wanted[0]])
        lines = "\n".join(f"{name}: {facts[name]}" for name in wanted)
        return written(lines, "Krua is a big city with a wall around it.")

    return ScriptedModel(turn, "small")


@asynccontextmanager
async def asking(store: Path, **models: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """Open OpenAI's client with a gateway that fills tables."""
    world = models.pop("world", OneCity())
    async with gateway(store, world, **models) as (filling, _):
        server = HTTPServer(openai_app(filling, open_access()), 0.0)
        url = f"http://{await server.start('127.0.0.1:0', 'http')}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client
        await server.drain()


def one_city(store: Path, **facts: str) -> Any:
    """Open a client of a gateway with one city."""
    models = {"delegator": ScriptedModel(plans, "backbone"), "executor": reads({**FACTS, **facts})}
    return asking(store, **models)


MESSAGES: Any = [{"role": "user", "content": QUESTION}]
KRUA = City(
    name="Krua",
    founder="Ana Torrin",
    founded=1043,
    area=12.5,
    walled=True,
    size=Size.LARGE,
    chartered=date(1101, 5, 3),
    kind=None,
)


async def test_an_object_has_the_types_of_its_schema(tmp_path: Path) -> None:
    """Both APIs give the same object, with its sources. What was not found is null."""
    async with one_city(tmp_path) as client:
        chat = await client.chat.completions.parse(
            model="rolegate", messages=MESSAGES, response_format=City
        )
        response = await client.responses.parse(model="rolegate", input=QUESTION, text_format=City)
    assert chat.choices[0].message.parsed == response.output_parsed == KRUA
    validate(json.loads(response.output_text), City.model_json_schema())
    assert list(json.loads(response.output_text)) == list(City.model_fields)
    (part,) = response.output[0].content
    assert {at.filename for at in part.annotations} == {"krua.txt"}
    table = (chat.model_extra or {})["rolegate"]["answer"]
    assert "| Krua | Krua | Ana Torrin | 1,043 |" in table


async def test_an_object_is_streamed_in_one_piece(tmp_path: Path) -> None:
    """After the progress."""
    async with one_city(tmp_path) as client:
        async with client.responses.stream(
            model="rolegate", input=QUESTION, text_format=City
        ) as stream:
            events = [event async for event in stream]
            response = await stream.get_final_response()
        async with client.chat.completions.stream(
            model="rolegate", messages=MESSAGES, response_format=City
        ) as chunks:
            chat = await chunks.get_final_completion()
    assert response.output_parsed == chat.choices[0].message.parsed == KRUA
    assert [event.type for event in events].count("response.output_text.delta") == 1


async def test_a_list_of_objects_is_a_table_of_many_rows(tmp_path: Path) -> None:
    """A founder that no page states is null."""
    world = World(6, unstated=1)
    async with asking(tmp_path, world=world) as client:
        chat = await client.chat.completions.parse(
            model="rolegate",
            messages=[{"role": "user", "content": "List all cities of the register."}],
            response_format=Cities,
        )
    parsed = chat.choices[0].message.parsed
    assert parsed
    assert [(at.city, at.founder or "", str(at.founded)) for at in parsed.cities] == world.rows()


@pytest.mark.parametrize(
    ("facts", "missing"),
    [
        ({"founder": "not found"}, "founder (1)"),
        ({"founder": "Bo Inventedson"}, "founder (1)"),
        ({"founded": "long ago"}, "founded (1)"),
        ({"founder": "not found", "founded": "1066"}, "founder (1), founded (1)"),
    ],
)
async def test_a_required_value_that_no_document_states_is_refused(
    tmp_path: Path, facts: dict[str, str], missing: str
) -> None:
    """Nothing is invented: not found, in no passage, or of another type are all the same."""
    async with one_city(tmp_path, **facts) as client:
        chat = await client.chat.completions.parse(
            model="rolegate", messages=MESSAGES, response_format=Founding
        )
        response = await client.responses.parse(
            model="rolegate", input=QUESTION, text_format=Founding
        )
        stream = await client.responses.create(
            model="rolegate", input=QUESTION, text=_text(Founding.model_json_schema()), stream=True
        )
        refused = [event.refusal async for event in stream if event.type == "response.refusal.done"]
        chunks = await client.chat.completions.create(
            model="rolegate", messages=MESSAGES, response_format=_chat(Founding), stream=True
        )
        written_out = [chunk.choices[0].delta.refusal or "" async for chunk in chunks]
    message = chat.choices[0].message
    (part,) = response.output[0].content
    assert (message.content, message.parsed, response.output_parsed) == (None, None, None)
    assert message.refusal == part.refusal == refused[0] == "".join(written_out)
    assert f": {missing}. Make them nullable" in message.refusal
    assert chat.choices[0].finish_reason == "stop"


def _text(schema: object) -> Any:
    return {"format": {"type": "json_schema", "name": "x", "schema": schema}}


def _chat(model: type[BaseModel]) -> Any:
    schema = {"name": "x", "schema": model.model_json_schema()}
    return {"type": "json_schema", "json_schema": schema}


async def test_a_property_that_is_not_required_is_left_out(tmp_path: Path) -> None:
    """It is neither null nor refused."""
    schema = {**Founding.model_json_schema(), "required": ["founded"]}
    async with one_city(tmp_path, founder="not found") as client:
        response = await client.responses.create(
            model="rolegate", input=QUESTION, text=_text(schema)
        )
    assert json.loads(response.output_text) == {"founded": 1043}


STRING = {"type": "string"}


def of(properties: object, **fields: object) -> dict[str, object]:
    """Return the schema of an object."""
    return {"type": "object", "properties": properties, **fields}


def test_a_schema_becomes_columns() -> None:
    """A single object has a hidden key, unless it names its subject. In a list, the first property
    that can identify a row is a key, and so are those before it.
    """
    listed = of({"year": {"type": "integer"}, "film": STRING, "director": STRING})
    for schema, keys in (
        (of({"a": STRING, "b": STRING}), ["subject"]),
        (of({"b": STRING, "Subject": STRING}), ["Subject"]),
        (of({"rows": {"type": "array", "items": listed}}), ["year", "film"]),
        (of({"a": {"type": "array", "items": {"$ref": "#/$defs/R"}}}, **{"$defs": {"R": listed}}),
         ["year", "film"]),
    ):  # fmt: skip
        columns = object_format(json.dumps(schema).encode()).columns
        assert [column.name for column in columns if column.key] == keys


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (None, "schema: must be an object, got null"),
        ([], "schema: must be an object"),
        ({"type": "array", "items": of({"a": STRING})}, "the object has no properties"),
        (of({}), "the object has no properties"),
        ({"type": "string"}, "the object has no properties"),
        (of({"a": of({"b": STRING})}), "the property 'a' is not supported"),
        (of({"a": {"type": "array", "items": STRING}, "b": STRING}), "the property 'a'"),
        (of({"a": {"type": "array", "items": STRING}}), "the object has no properties"),
        (of({"a": {"type": "array"}}), "the property 'a' is not supported"),
        (of({"a": {"anyOf": [STRING, {"type": "integer"}]}}), "the property 'a'"),
        (of({"a": {"$ref": "#/$defs/B"}}), "the property 'a' is not supported"),
        (
            of({"a": {"$ref": "#/$defs/B"}}, **{"$defs": {"B": {"$ref": "#/$defs/B"}}}),
            "the property 'a' is not supported",
        ),
        (of({"a": {"type": "string", "pattern": "x"}}), "unknown field `pattern`"),
        (of({"a": {"type": "integer", "minimum": 1}}), "unknown field `minimum`"),
        (of({"a": {"type": "string", "format": "email"}}), "the property 'a' is not supported"),
        (of({"a": {"anyOf": [STRING], "format": "email"}}), "the property 'a' is not supported"),
        (of({"a": {}}), "the property 'a' is not supported"),
        (of({"a": {"type": "string", "const": ""}}), "its type is choice, and it has 0 choices"),
        (of({"a": {"enum": [1, 2]}}), "got a whole number"),
        (of({"a": {"enum": ["unknown"]}}), "a choice is empty or means"),
        (of({"a": STRING}, additionalProperties=STRING), "must be true or false"),
        (of({"a": STRING, "A ": STRING}), "columns[1] has the same name"),
        (of({"": STRING}), "columns[1] has no name"),
        (of({"a\nb": STRING}), "names of at most 100 printable characters"),
        (of({"x" * 101: STRING}), "names of at most 100 printable characters"),
        (of({f"p{number}": STRING for number in range(65)}), "65 columns given, at most 64"),
        (of({f"p{number}": {} for number in range(4000)}), "4000 columns given, at most 64"),
        (of({f"p{number}": STRING for number in range(10_000)}), "at most 65536 are allowed"),
        (of({"a": {"type": "string", "description": "x" * 900_000}}), "at most 65536 are allowed"),
        (of({"a": {"enum": [str(number) for number in range(1025)]}}), "1025 choices given"),
    ],
)
async def test_a_schema_that_is_not_supported_is_refused(
    tmp_path: Path, schema: object, message: str
) -> None:
    """Nothing is asked of a model."""
    uncalled = ScriptedModel([])
    async with asking(tmp_path, delegator=uncalled, executor=uncalled) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="rolegate", input=QUESTION, text=_text(schema))
    assert message in refused.value.message
    assert len(refused.value.message) < 600
    assert uncalled.prompts == []


@pytest.mark.timing
@pytest.mark.parametrize(
    "schema",
    [
        of({f"p{number}": {} for number in range(5000)}),
        of({f"p{number}": {"$ref": "#/$defs/B"} for number in range(60)},
           **{"$defs": {"B": {"enum": [str(number) for number in range(7000)]}}}),
        of({"a": {"anyOf": [{}] * 16_000}}),
    ],
    ids=["properties", "references", "variants"],
)  # fmt: skip
def test_a_hostile_schema_is_read_quickly(schema: object) -> None:
    """Reading one does not hold the event loop."""
    text = json.dumps(schema, separators=(",", ":")).encode()
    assert len(text) < 1 << 16
    start = time.thread_time()
    with suppress(BadRequest):
        object_format(text)
    assert time.thread_time() - start < 0.05


def test_a_deeply_nested_schema_is_refused() -> None:
    for opening, closing in ((b'{"anyOf":[', b"]}"), (b'{"items":', b"}")):
        text = opening * 4000 + b"{}" + closing * 4000
        with pytest.raises(BadRequest, match=r"^schema: "):
            object_format(text)
