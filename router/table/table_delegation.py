"""Texts for the delegator of a table (the request, and the table's status), and the parser of the
plan that the delegator writes.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import chain, islice
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
"""Stop strings for the delegator of a table. `<table` begins a status, which only the gateway may
write; a model that writes one would invent the table's next status.
"""

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
"""`_MAX_TAGS`: max conditions that are read in a turn. `_MAX_TAG_CHARS`: max characters of a
condition's attributes.
"""
_WHERE = re.compile(r"<\s{0,4}where\b([^<>]*?)(?:/>|>([^<]*)(?=<))", re.IGNORECASE)
"""Matches a complete `<where>` tag, which is a condition. A tag that the length limit cut off is
ignored, because some of its values may be missing.
"""
_BY_NAME: tuple[Operator, ...] = ("equals", "one_of", "contains")
"""Operators whose values are compared as names, not by order."""
_ALIKE = 0.85
"""Min similarity (`difflib`, 0 to 1) at which a name counts as a misspelling of a name in the
request.
"""
_ENDING = 3
"""Number of last characters that a misspelled name must share with the name in the request, because
"Austria" and "Austrian" are two words.
"""
_MAX_ALIKE = 20
_MAX_MISSPELLED = 8
_MAX_NAME = 50
"""`_MAX_ALIKE`: max phrases of the request with which a name is compared. `_MAX_MISSPELLED`: max
names of a plan that are compared. `_MAX_NAME`: max characters of such a name. These limits bound
the time.
"""
_ATTRIBUTE = re.compile(
    r"""([a-z]{1,9})\s{0,4}=\s{0,4}["'“]([^"”]*?)["'”](?=\s|/|\Z)""", re.IGNORECASE
)

_FORM = re.compile(r"```markdown\s*\{[^{}]{1,40}\}\s*```[\s.。]*\Z")
"""Matches the last lines of every question of the benchmark WideSearch."""
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
"""Max characters of all column names together. If they are longer, they are not looked for in a
question.
"""


def opening(question: str, schema: Schema) -> str:
    """Return the request for the table as the delegator is shown it. It also describes the hidden
    columns for which the delegator must write a question template.
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
    """Return the schema with the conditions and question templates in the delegator's turn `text`,
    and the invalid conditions in this turn, each with an error message. A column that already has a
    template keeps it. Invalid conditions and templates are ignored.

    `request`: the request for the table, as the delegator was shown it. The request must contain
    each name in a condition, because a misspelled name would exclude right rows. A name that
    differs in few letters is spelled as in the request. Wrong names among the values of `one_of`
    are replaced by names from the plan's questions for rows.
    """
    text = without_thinking(text)
    plan = parse_decision(text, limit=_MAX_TAGS, managed=True)
    questions = plan.sub_queries if isinstance(plan, Dispatch) else ()
    tags = [*islice(_WHERE.finditer(text), _MAX_TAGS)]
    written = chain.from_iterable(tag.group(2).split("|") for tag in tags if tag.group(2))
    shown = readable(request)
    spellings = _spellings(map(one_line, written), shown)
    request = fold(shown)
    ignored = list[str]()
    for tag in tags:
        try:
            condition = _condition(*tag.groups(""))
            name = normal_name(condition.column.name)
            types = {normal_name(column.name): column.type for column in schema.columns}
            if types.get(name, "text") == "text":
                condition = _corrected(condition, spellings, questions, request)
            extended = with_condition(schema, condition)
            for added in extended.conditions[len(schema.conditions) :]:
                _check_names(added, request)
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


def _spellings(values: Iterable[str], request: str) -> dict[str, str]:
    """Map each misspelled name of a plan to its spelling in the request. A name is misspelled if
    the request does not contain it, but contains a name with the same number of words, the same
    ending, and few different letters. At most `_MAX_MISSPELLED` names are looked at.

    `values`: values of conditions.
    """
    words = _WORD.findall(request)
    folded = fold(request)
    wrong = (
        value
        for value in dict.fromkeys(values)
        if value[:1].isupper()
        and len(value) <= _MAX_NAME
        and not _DIGIT.search(value)
        and sought(value) not in folded
    )
    spellings = dict[str, str]()
    for value in islice(wrong, _MAX_MISSPELLED):
        size = len(value.split())
        phrases = dict.fromkeys(" ".join(words[at : at + size]) for at in range(len(words)))
        alike = (
            name
            for name in phrases
            if name[:1].isupper()
            and name.endswith(value[-_ENDING:])
            # "Dependent" and "Independent" are two words
            and value.casefold() not in name.casefold()
            and name.casefold() not in value.casefold()
        )
        for name in get_close_matches(value, [*islice(alike, _MAX_ALIKE)], 1, _ALIKE):
            spellings[value] = name
    return spellings


def _corrected(
    condition: Condition,
    spellings: Mapping[str, str],
    questions: Sequence[str],
    request: str,
) -> Condition:
    """Return a condition with its misspelled names corrected, unless two of them would become
    equal. Wrong names of `one_of` are replaced by names in the plan's questions for rows: if one
    question is "Which films by A are there?", and A is among the values, a question that differs
    only in the name provides a further value.

    Small models miscopy the second name in a condition more often than the name in a question.
    `request`: the folded request.
    """
    if condition.operator not in _BY_NAME:
        return condition
    values = [spellings.get(value, value) for value in condition.values]
    if len(set(values)) == len(values):
        condition = replace(condition, values=tuple(values))
    names = dict.fromkeys(value for value in condition.values if sought(value) in request)
    complete = len(names) == len(condition.values) > 1
    if condition.operator != "one_of" or complete or not names:
        return condition

    known, *_ = names
    for question in questions:
        before, is_asked, after = question.partition(known)
        for other in questions if is_asked and (before or after) else ():
            name = other.removeprefix(before).removesuffix(after)
            if name and f"{before}{name}{after}" == other and sought(name) in request:
                names[name] = None
    # With fewer names than values, a right name may be missing
    enough = len(names) >= max(2, len(condition.values))
    return replace(condition, values=tuple(names)) if enough else condition


def _check_names(condition: Condition, request: str) -> None:
    """Raise `BadRequest` if a condition contains a name that the folded request does not contain,
    or if `one_of` has only one value. A condition with a misspelled name, or with one name of two,
    would exclude right rows.
    """
    if condition.operator == "one_of" and len(condition.values) == 1:
        raise BadRequest("one_of has only one value; use equals, or give all values.")
    if condition.column.type == "text" and condition.operator in _BY_NAME:
        for value in condition.values:
            if sought(value) not in request:
                raise BadRequest(
                    f"the request lacks the name {value[:_MAX_CHARS]!r}; use a name in the request."
                )


def _condition(attributes: str, body: str) -> Condition:
    """Return the condition in a tag `<where column="…" is="…">…</where>` or `<where ask="…"/>`.
    Vertical bars separate the values of `one_of`. If the operator compares numbers or dates, and
    there are several values, those without a digit are ignored. Raises `BadRequest` for an unknown
    operator.
    """
    named = {
        name.lower(): readable(value)
        for name, value in _ATTRIBUTE.findall(attributes[:_MAX_TAG_CHARS])
    }
    operator: Any = named.get("is", "equals").strip().lower().replace(" ", "_")
    if operator not in get_args(Operator):
        raise BadRequest(
            f"the condition on {named.get('column', named.get('ask'))!r} has the unknown operator "
            f"{operator[:_MAX_CHARS]!r}; use {', '.join(get_args(Operator))}."
        )
    column = Column(named.get("column", ""), ask=named.get("ask", ""))
    written = filter(None, map(one_line, body.split("|")))
    values = tuple({sought(value) or value: value for value in written}.values())
    if operator == "equals" and len(values) > 1:
        operator = "one_of"
    elif operator not in _BY_NAME and len(values) > 1:
        values = tuple(filter(_DIGIT.search, values)) or values
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
    were not asked, because the turn had more questions than allowed.
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
    """Yield each cell without a value, named as `ROW: COLUMN`."""
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
