"""Answers that are JSON and follow the JSON schema of the request. To write such an answer, the
gateway fills a table in which each property of the schema is a column. If the schema describes one
object, the table has one row; if it describes a list of objects, many rows.

The row of a single object is found by sub-queries of the delegator, like any row. The key of this
row is the property `subject`, which names the thing that the question is about. If the schema lacks
this property, the column `SUBJECT` is added as the key, but not sent to the client.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any

import msgspec

from router.edge.asked_table import keys_of
from router.edge.http.openai_reply import Written
from router.errors import JSON_ERRORS, BadRequest, explained
from router.frozen import Frozen
from router.table import Table, TableRequest
from router.table.cell_value import canonical, is_mistyped
from router.table.schema import MAX_CHOICES, check_number, normal_name
from router.trace.table import Cell, Column

SUBJECT = Column(
    "subject", key=True, about="the one thing that the question is about; the table has one row"
)
_MAX_BYTES = 1 << 16
_MAX_NAME_CHARS = 100
_MAX_VARIANTS = 4
"""Max parts of an `anyOf`. Each may refer to the same long list of choices."""
_TYPES: dict[tuple[str, str], Any] = {
    ("string", ""): "text",
    ("string", "date"): "date",
    ("integer", ""): "integer",
    ("number", ""): "number",
    ("boolean", ""): "boolean",
}
"""Types of columns, by the type and the format of a property in the JSON schema."""
_HINT = (
    "use a flat object, or a list of flat objects, of strings, dates, integers, numbers, booleans "
    "and enums of strings, which may be null"
)


class _Node(
    Frozen,
    forbid_unknown_fields=True,
    rename={"ref": "$ref", "definitions": "$defs", "dialect": "$schema"},
):
    """A JSON schema, or a part of one, with the names that JSON Schema uses."""

    type: str | tuple[str, ...] = ()
    format: str = ""
    enum: Annotated[tuple[str | None, ...], msgspec.Meta(max_length=2 * MAX_CHOICES)] = ()
    const: str | None = None
    anyOf: Annotated[tuple["_Node", ...], msgspec.Meta(max_length=_MAX_VARIANTS)] = ()
    ref: str = ""
    properties: dict[str, "_Node"] = {}
    required: tuple[str, ...] = ()
    items: "_Node | None" = None
    description: str = ""
    definitions: dict[str, "_Node"] = {}
    additionalProperties: bool = False
    title: str = ""
    default: Any = None
    dialect: str = ""

    @property
    def types(self) -> tuple[str, ...]:
        """Names of the types that a value may have."""
        return (self.type,) if isinstance(self.type, str) else self.type

    def referred(self, node: "_Node") -> "_Node":
        """Return the definition to which `node` refers, or else `node`."""
        return self.definitions.get(node.ref.removeprefix("#/$defs/"), node)


class ObjectFormat(Frozen):
    """A JSON schema, converted to the columns of a table. It describes an object, or a list of
    objects.
    """

    columns: tuple[Column, ...]
    nullable: frozenset[str]
    required: frozenset[str]
    rows: str
    """Name of the property with the list of objects; empty for a single object."""

    def request(self, question: str) -> TableRequest:
        """Return the request for the table from which the objects are read."""
        return TableRequest(question, self.columns, max_rows=0 if self.rows else 1)

    def read(self, table: Table) -> tuple[Written, str]:
        """Return the kind of the answer and its text: the objects of a table as JSON. If required
        values are missing, the answer is a refusal that names them.
        """
        missing = Counter[str]()
        rows: list[Any] = [row.cells for row in table.rows]
        if not (rows or self.rows):
            rows = [[None] * len(self.columns)]
        objects = [self._object(cells, missing) for cells in rows]
        if missing:
            listed = ", ".join(f"{name} ({number})" for name, number in missing.items())
            return "refusal", (
                "The documents found do not state these properties (in brackets: the number of "
                f"objects without a value): {listed}. Make them nullable, or rephrase the question."
            )
        whole: object = {self.rows: objects} if self.rows else objects[0]
        return "output_text", msgspec.json.encode(whole).decode()

    def _object(self, cells: Sequence[Cell | None], missing: Counter[str]) -> dict[str, Any]:
        """Return the object of a row, and count its missing values."""
        values = dict[str, Any]()
        for column, cell in zip(self.columns, cells, strict=True):
            name = column.name
            value = _value(column, cell)
            if column is SUBJECT:
                continue
            if value is not None or name in self.nullable:
                values[name] = value
            elif name in self.required:
                missing[name] += 1
        return values


def object_format(schema: bytes) -> ObjectFormat:
    """Convert a JSON schema to an `ObjectFormat`. Raises `BadRequest` for parts of JSON Schema that
    are not supported.
    """
    if len(schema) > _MAX_BYTES:
        raise BadRequest(
            f"schema has {len(schema)} bytes; at most {_MAX_BYTES} are allowed; shorten it."
        )
    try:
        root = msgspec.json.decode(schema, type=_Node)
    except JSON_ERRORS as error:
        raise BadRequest(f"schema: {explained(error)}; {_HINT}.") from None
    node = root
    rows = ""
    if len(root.properties) == 1:
        ((name, part),) = root.properties.items()
        if part.types == ("array",) and part.items:
            rows = name
            node = root.referred(part.items)
    if node.types != ("object",) or not node.properties:
        raise BadRequest(f"schema: the object has no properties; {_HINT}.")
    check_number(node.properties)

    names = [*node.properties]
    keys = keys_of(names) if rows else {name for name in names if normal_name(name) == SUBJECT.name}
    columns = [] if keys else [SUBJECT]
    nullable = set[str]()
    for name, part in node.properties.items():
        variants = [root.referred(variant) for variant in (part, *part.anyOf)]
        types = [*chain.from_iterable(variant.types for variant in variants)]
        choices = [*chain.from_iterable(variant.enum for variant in variants)]
        choices += [variant.const for variant in variants if variant.const is not None]
        if "null" in types or None in choices:
            nullable.add(name)
        kind = _TYPES.get(
            (
                " ".join(kind for kind in types if kind != "null"),
                "".join(variant.format for variant in variants),
            )
        )
        if choices:
            kind = "choice"
        if kind is None or len(name) > _MAX_NAME_CHARS or not name.isprintable():
            raise BadRequest(
                f"schema: the property {name[:_MAX_NAME_CHARS]!r} is not supported; {_HINT}, with "
                f"names of at most {_MAX_NAME_CHARS} printable characters."
            )
        columns.append(
            Column(
                name,
                kind,
                key=name in keys,
                about=part.description,
                choices=tuple(filter(None, choices)),
            )
        )
    return ObjectFormat(tuple(columns), frozenset(nullable), frozenset(node.required), rows)


def _value(column: Column, cell: Cell | None) -> object:
    """Return the value of a property. Return None if the value was not found, if it is not a
    complete value of the property's type, or if no passage supports it.
    """
    if cell is None or not cell.value or is_mistyped(column, cell.value):
        return None
    form = canonical(column, cell.value)
    value: object = form
    match column.type:
        case "choice":
            return form
        case "boolean":
            return form == "true"
        case "text":
            value = cell.value
        case "integer" | "number":
            value = msgspec.Raw(form.encode())
    is_part = column.type == "date" and len(form) < len("2026-11-21")
    return None if is_part or cell.claims[0].support == "unsupported" else value
