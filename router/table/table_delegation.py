"""The texts that the delegator of a table is shown (the request, and the table's status), and the
reading of the plan that it writes.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from typing import Any, get_args

from msgspec.structs import replace

from router.errors import BadRequest
from router.folding import fold, sought
from router.protocol import prompts
from router.protocol.decision import Dispatch, parse_decision
from router.protocol.tags import one_line, readable, without_thinking
from router.table.assembly import Table
from router.table.completeness import completeness
from router.table.conditions import with_condition
from router.table.schema import checked_schema, meaning, normal_name
from router.trace.table import Ask, CellState, Column, Condition, Operator, Row, Schema

STOP = ("<table",)
"""Stop strings: a model that writes the tag of a status would invent the table's next status."""

# These limits keep the delegator's context small for tables of any size
MAX_KEYS = 20
"""Max rows that a status lists."""
MAX_HOLES = 5
"""Max missing cells that a status lists."""
_MAX_CHARS = 100
"""Max characters of a row's name."""

_HOLES: tuple[CellState, ...] = ("missing", "not_found")
_ASK = re.compile(
    r"""<\s{0,4}ask\s{1,4}column\s{0,4}=\s{0,4}["'“]?([^"”<>]{1,200}?)["'”]?\s{0,4}>"""
    r"""([^<]{1,500})<\s{0,4}/\s{0,4}ask""",
    re.IGNORECASE,
)


_MAX_TAGS = 64
_MAX_TAG_CHARS = 5000
"""Max conditions that are read in a turn, and max characters of their attributes."""
_WHERE = re.compile(r"<\s{0,4}where\b([^<>]*?)(?:/>|>([^<]*)(?=<))", re.IGNORECASE)
"""Matches a condition. One that a limit cut off has no end, and part of its values is missing."""
_BY_NAME: tuple[Operator, ...] = ("equals", "one_of", "contains")
"""Operators that compare names."""
_ALIKE = 0.85
"""Min similarity of a misspelled name to the name in the request, from 0 to 1 (`difflib`)."""
_ENDING = 3
"""Number of last characters that a misspelled name must share with the name in the request, since
"Austria" and "Austrian" are two words.
"""
_MAX_ALIKE = 20
"""Max phrases of a request with which a name is compared, and max names of a condition that are
compared.
"""
_ATTRIBUTE = re.compile(
    r"""([a-z]{1,9})\s{0,4}=\s{0,4}["'“]([^"”]*?)["'”](?=\s|/|\Z)""", re.IGNORECASE
)

_FORM = re.compile(r"```markdown\s*\{[^{}]{1,40}\}\s*```[\s.。]*\Z")
"""The last lines of every question of the benchmark WideSearch."""
_SENTENCE = re.compile(r"[^.?!。？！\n]*(?:[.?!。？！\n]\s*|\Z)")
_FORM_WORDS = frozenset(
    fold("""
please organize output present give put provide return list display show results data information
organized compiled final table tables markdown format form of in into as one single with following
specified column columns name names header headers labeled labelled order sequence exact this these
should be are is follows don't ask me any questions just according to without omitting cells
arbitrarily leave no cell out that can known result a
请以一整个Markdown表格的格式输出整理后的数据，不要拆分成多个表格，每个单元格都需要按列名要求输出，不得无故省略，输出采用中文。
表格中的列名依次为：不要问我任何问题，只需输出结果，将到一个
""").split()
)
"""Words of the sentences that describe the form of a table and nothing else."""
_WORD = re.compile(r"[\w'’-]+")
_DIGIT = re.compile(r"\d")
_MAX_NAMES_CHARS = 1000
"""Max characters of the columns' names that are looked for in a question."""


def opening(question: str, schema: Schema) -> str:
    """Return the text of the request that the delegator is shown first. The text also describes the
    hidden columns that need a question template.
    """
    columns = [column for column in schema.columns if not (column.hidden and column.ask)]
    return prompts.table_request(without_form(question, schema), map(described, columns))


def without_form(question: str, schema: Schema) -> str:
    """Return a question without the sentences that only repeat the schema's columns and the form of
    the table. WideSearch ends all its questions with such sentences.
    """
    end = _FORM.search(question)
    names = "".join(normal_name(column.name) for column in schema.shown)
    if not end or len(names) > _MAX_NAMES_CHARS:
        return question
    letters = [at for at in range(end.start()) if question[at].isalnum()]
    first = "".join(question[at].lower()[0] for at in letters).rfind(names)
    if first < 0:
        return question
    before = question[: letters[first]]
    after = question[letters[first + len(names) - 1] + 1 : end.start()]
    parts = _SENTENCE.findall(f"{before}\n{after}")
    kept = [part for part in parts if not _FORM_WORDS.issuperset(fold(part).split())]
    return "".join(kept).strip() or question


def described(column: Column) -> str:
    """Describe a column for models: name, a star for a key, type, and meaning."""
    kind = "" if column.type == "text" else f":{column.type}"
    about = meaning(column)
    return f"{column.name}{'*' * column.key}{kind}{about and f' ({about})'}"


def planned(schema: Schema, text: str, request: str) -> tuple[Schema, tuple[str, ...]]:
    """Return the schema with the conditions and question templates that the delegator wrote in its
    turn `text`, and the conditions that are ignored because they are invalid, each with the reason.
    A column that already has a template keeps it. Invalid templates are ignored.

    `request`: the request for the table, as it was shown to the delegator. It must contain each
    name in a condition, because a misspelled name would exclude right rows. A name that differs in
    few letters is spelled as in the request, and wrong names of `one_of` are replaced by those in
    the plan's questions for rows.
    """
    text = without_thinking(text)
    shown = readable(request)
    request = fold(shown)
    ignored = list[str]()
    for tag in islice(_WHERE.finditer(text), _MAX_TAGS):
        try:
            condition = _respelled(_condition(*tag.groups("")), shown, request)
            if condition.operator == "one_of":
                condition = _completed(condition, text, request)
            extended = with_condition(schema, condition)
            for condition in extended.conditions[len(schema.conditions) :]:
                _check_names(condition, request)
            schema = extended
        except BadRequest as error:
            ignored.append(f"{one_line(tag[0][:_MAX_CHARS])}: {error}")

    for name, ask in _ASK.findall(text):
        wanted = normal_name(readable(name))
        columns = list(schema.columns)
        for at, column in enumerate(columns):
            if normal_name(column.name) == wanted and not column.key and not column.ask:
                columns[at] = replace(column, ask=one_line(ask))
        with suppress(BadRequest):
            schema = checked_schema(columns, schema.conditions)
    return schema, tuple(ignored)


def _respelled(condition: Condition, shown: str, request: str) -> Condition:
    """Return a condition with each misspelled name spelled as in the request. Return it unchanged
    if two of its values would become equal. `request`: the folded form of the request `shown`.
    """
    if condition.operator not in _BY_NAME or len(condition.values) > _MAX_ALIKE:
        return condition
    words = _WORD.findall(shown)
    values = list[str]()
    for value in condition.values:
        alike = list[str]()
        if sought(value) not in request and len(value) <= _MAX_CHARS and not _DIGIT.search(value):
            size = len(value.split())
            phrases = (" ".join(words[at : at + size]) for at in range(len(words)))
            ending = value[-_ENDING:]
            alike += islice((name for name in phrases if name.endswith(ending)), _MAX_ALIKE)
        values += get_close_matches(value, alike, 1, _ALIKE) or [value]
    is_distinct = len(set(values)) == len(values)
    return replace(condition, values=tuple(values)) if is_distinct else condition


def _completed(condition: Condition, text: str, request: str) -> Condition:
    """Return a condition `one_of` whose values are names of the request. If some are not, take the
    names from the questions for rows in the plan `text`: if one is "Which films by A are there?",
    with A among the values, another one that differs in the name only has a further value.

    Small models miscopy the second name of a condition more often than that of a question.
    """
    names = dict.fromkeys(value for value in condition.values if sought(value) in request)
    plan = parse_decision(text, limit=_MAX_TAGS)
    complete = len(names) == len(condition.values) > 1
    if complete or not names or not isinstance(plan, Dispatch):
        return condition
    known, *_ = names
    for asked in plan.sub_queries:
        before, found, after = asked.partition(known)
        for other in plan.sub_queries if found else ():
            name = other.removeprefix(before).removesuffix(after)
            if name and f"{before}{name}{after}" == other and sought(name) in request:
                names[name] = None
    return replace(condition, values=tuple(names)) if len(names) > 1 else condition


def _check_names(condition: Condition, request: str) -> None:
    """Raise `BadRequest` if a condition contains a name that the folded request does not contain,
    or if `one_of` has only one value. Right rows would be excluded if a model misspelled a name, or
    wrote one name of two.
    """
    if condition.operator == "one_of" and len(condition.values) == 1:
        raise BadRequest("one_of has one value only; use equals, or give all values.")
    if condition.column.type == "text" and condition.operator in _BY_NAME:
        for value in condition.values:
            if sought(value) not in request:
                raise BadRequest(f"the request does not name {value[:_MAX_CHARS]!r}.")


def _condition(attributes: str, body: str) -> Condition:
    """Return the condition in a tag `<where column="…" is="…">…</where>` or `<where ask="…"/>`. The
    values of `one_of` have bars between them. If a number or date must have one value, further
    texts without a digit are ignored. Raises `BadRequest` for an unknown operator.
    """
    named = {
        name.lower(): readable(value)
        for name, value in _ATTRIBUTE.findall(attributes[:_MAX_TAG_CHARS])
    }
    operator: Any = named.get("is", "equals").strip().lower().replace(" ", "_")
    if operator not in get_args(Operator):
        raise BadRequest(f"is={operator[:_MAX_CHARS]!r}: use {', '.join(get_args(Operator))}.")
    column = Column(named.get("column", ""), ask=named.get("ask", ""))
    values = tuple(filter(None, map(one_line, body.split("|"))))
    if operator == "equals" and len(values) > 1:
        operator = "one_of"
    elif operator not in _BY_NAME and len(values) > 1:
        values = tuple(filter(_DIGIT.search, values))
    return Condition(column, operator, values)


def status(
    table: Table,
    independent_discoveries: Collection[Ask],
    not_dispatched: Sequence[str] = (),
) -> str:
    """Return the text that shows the delegator the table's status: counts, and the names of some
    rows and missing cells.

    `independent_discoveries`: the discoveries whose executors searched in this run, instead of
    using a report of another run. `not_dispatched`: questions of the delegator's last turn that
    exceeded the limit.
    """
    known = completeness(table, independent_discoveries)
    missing = sum(known.cells.get(state, 0) for state in _HOLES)
    counts = {"rows": known.rows, "complete": known.complete_rows, "missing": missing}
    counts |= {"conflicts": known.cells.get("conflict", 0), "seen_once": known.rows_seen_once}
    if known.estimated_rows is not None:
        counts["estimate"] = known.estimated_rows
    if table.excluded:
        counts["excluded"] = len(table.excluded)
    names = [_name(table.schema, row) for row in table.rows]
    holes = islice(_holes(table, names), MAX_HOLES)
    return prompts.table_status(counts, names[:MAX_KEYS], holes, not_dispatched)


def _holes(table: Table, names: Sequence[str]) -> Iterator[str]:
    """Yield the names of missing cells, as `row: column`."""
    for name, row in zip(names, table.rows, strict=True):
        for column, cell in zip(table.schema.columns, row.cells, strict=True):
            if cell.state in _HOLES:
                yield f"{name}: {column.name}"


def _name(schema: Schema, row: Row) -> str:
    """Return a row's key values on one line, cut to `_MAX_CHARS` characters."""
    shown = ", ".join(
        cell.value for column, cell in zip(schema.columns, row.cells, strict=True) if column.key
    )
    return " ".join(shown[:_MAX_CHARS].split())
