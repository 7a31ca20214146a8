"""Gold pages:

WideSearch's tables as a corpus, a page for each row and a register page for each ten, filled again
through a gateway by models that follow rules, and scored by the benchmark's rules. This shows the
pipeline at real sizes and with real strings. It cannot show how well a model searches, reads, plans
or understands a question, and neither contradicting sources nor the web are in it: the gold is in
the corpus, word for word. Scores are upper bounds of the pipeline, and not comparable with any
published system's.
"""

import asyncio
import html
import random
import re
import time
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import msgspec
import pytest

from benchmarks.widesearch.scoring import CellJudge, RuleSet, TableScores, scores_of
from benchmarks.widesearch.tasks import Rule, Task, read_tasks
from router.models import Prompt, Usage
from router.protocol import Passage
from router.runs import RequestOptions
from router.table import TableLimits, TableRequest, table_cost, table_of
from router.table.cell_value import is_blank
from router.table.table_text import to_markdown
from router.trace import Run
from router.trace.table import Column, ColumnType, Support
from router.trace.values import TableRun
from serving.retrieval.lexical import LexicalIndex, write_lexical
from serving.retrieval.passages import embedded_text
from tests.benchmarks.widesearch.made_tasks import DATA
from tests.router.table.figures.runs import show
from tests.router.table.small_world import ENOUGH, gateway, written
from tests.scripted_model import ScriptedModel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.exists(), reason="WideSearch's tasks are not there"),
]

_A_REGISTER = 10
_A_TURN = 20
_TYPES: dict[str, ColumnType] = {"number_near": "number", "date_near": "date", "url_match": "url"}
_LETTER = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_DOCUMENT = re.compile(r"<title>(.*?)</title><text>(.*?)</text>", re.DOTALL)
_TITLE = re.compile(r'"(.*)" (.*)')
_NAMED = re.compile(r"(?:What is|Look up) the (\S+) of (.*)[?.]\Z", re.DOTALL)


class GoldTable:
    """Gold table of a task, as pages and registers."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.id = task.instance_id
        self.rows = [
            dict(zip(task.gold, row, strict=True)) for row in zip(*task.gold.values(), strict=True)
        ]
        self.columns = tuple(
            _column(name, rule, key=name in task.keys) for name, rule in task.rules.items()
        )
        self.registers = range(1, 1 + -(-len(self.rows) // _A_REGISTER))

    def pages(self) -> list[Passage]:
        """Return all pages."""
        keys = [column for column in self.columns if column.key]
        passages = list[Passage]()
        for position, row in enumerate(self.rows):
            title = self.title(row)
            cells = [
                (name, value)
                for name, value in row.items()
                if name not in self.task.keys and not is_blank(value)
            ]
            text = "\n".join(f"The {name} of {title} is {value}." for name, value in cells)
            passages.append(
                Passage(f"{self.id}/{position}", title, text, document=f"{self.id}/{position}")
            )
        for number in self.registers:
            rows = self.rows[(number - 1) * _A_REGISTER : number * _A_REGISTER]
            title = self.register(number)
            text = to_markdown(keys, ([row[column.name] for column in keys] for row in rows))
            passages.append(Passage(title, title, text, document=title))
        return passages

    def title(self, row: dict[str, str]) -> str:
        """Return the title of a row's page."""
        return ", ".join(
            " ".join(row[column.name].split()) for column in self.columns if column.key
        )

    def register(self, number: int) -> str:
        """Return the title of a part of the register, a unique word that the index finds."""
        return f"{self.id}part{number}".replace("_", "")

    def scored(self, *, blank: bool) -> Task:
        """Return the task for scoring; with `blank`, texts for missing values in its gold become
        empty.
        """
        gold = {
            name: ["" if blank and is_blank(cell) else cell for cell in cells]
            for name, cells in self.task.gold.items()
        }
        return msgspec.structs.replace(self.task, gold=gold)

    @cached_property
    def request(self) -> TableRequest:
        """Return the table request of the task."""
        return TableRequest(f"{self.id}: {self.task.query}", self.columns)

    def lead_turn(self, messages: int) -> str:
        """Request some registers in each turn, and stop after the last."""
        turn = messages // 2 - 1
        parts = self.registers[turn * _A_TURN : (turn + 1) * _A_TURN]
        discoveries = ", ".join(
            f'"Which rows are in register {self.register(part)}?"' for part in parts
        )
        return f"<search>[{discoveries}]</search>" if parts else ENOUGH


def _column(name: str, rule: Rule, *, key: bool) -> Column:
    return Column(name, "text" if key else _TYPES.get((*rule.metric, "")[0], "text"), key)


class Pages:
    """The project's lexical index over all pages.

    Text in quotation marks is looked up as a title instead.
    """

    def __init__(self, folder: Path, tables: Sequence[GoldTable]) -> None:
        self._pages = [page for table in tables for page in table.pages()]
        write_lexical(folder, map(embedded_text, self._pages))
        self._index = LexicalIndex.open(folder)
        self._titled: dict[str, list[Passage]] = {}
        for page in self._pages:
            self._titled.setdefault(page.title, []).append(page)
        self.looked_up = 0

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """Return the best pages; of those with a title, the pages that have most of the other
        words.
        """
        await asyncio.sleep(0)
        return [self._search(query, top_k) for query in queries]

    def _search(self, query: str, top_k: int) -> list[Passage]:
        if title := _TITLE.fullmatch(query):
            self.looked_up += 1
            words = title[2].split()
            titled = self._titled.get(title[1], ())
            return sorted(
                titled, key=lambda page: -sum(f"The {word} of " in page.text for word in words)
            )[:top_k]
        return [self._pages[hit.row] for hit in self._index.search([query], top_k)[0]]


class _Counting(ScriptedModel):
    """Estimate tokens: one for each letter of a script without spaces, else one for four
    characters.
    """

    async def count(self, prompt: Prompt, text: str) -> Usage:
        return Usage(sum(_tokens(message.content) for message in prompt.messages), _tokens(text))


def _tokens(text: str) -> int:
    unspaced = len(_LETTER.findall(text))
    return unspaced + (len(text) - unspaced + 3) // 4


class Reader(_Counting):
    """A model that copies a register, or values from the page with the row's title.

    If no page has it, it looks the title up. A share of the cells is invented: half of them are
    made up, half copied from other rows.
    """

    def __init__(self, tables: Sequence[GoldTable], invents: float = 0.0) -> None:
        super().__init__(self._write, "small")
        self._invents = invents
        self.made_up = set[str]()
        self._values = {
            name: sorted({row[name] for table in tables for row in table.rows if row.get(name)})
            for name in {column.name for table in tables for column in table.columns}
        }

    def _write(self, prompt: Prompt) -> str:
        sub_query = html.unescape(prompt.messages[1].content)
        searched = len(prompt.messages) > 2
        shown = [
            (html.unescape(title), html.unescape(text))
            for message in prompt.messages[2:]
            if message.role == "user"
            for title, text in _DOCUMENT.findall(message.content)
        ]
        if register := re.match(r"Which rows are in register (\w+)\?", sub_query):
            part = [text for title, text in shown if title == register[1]]
            return _reported(part[0]) if part else _searched(register[1])
        single = _NAMED.fullmatch(sub_query)
        columns = [single[1]] if single else re.findall(r"^- (\S+): ", sub_query, re.MULTILINE)
        name = " ".join((single[2] if single else sub_query.partition(":\n- ")[0]).split())
        mine = [
            (title, text)
            for title, text in shown
            if title == name and f"\nThe {columns[0]} of " in f"\n{text}"
        ]
        if not mine and len(prompt.messages) < 6:
            return _searched(
                f'"{name}" {" ".join(columns)}' if searched else f"{name} {' '.join(columns)}"
            )
        values = {column: self._value(column, mine, sub_query) for column in columns}
        lines = [
            value if single else f"{column}: {value}" for column, value in values.items() if value
        ]
        return _reported("\n".join(lines) or "not found")

    def _value(self, column: str, pages: Sequence[tuple[str, str]], sub_query: str) -> str:
        luck = random.Random(f"{sub_query}/{column}")
        if luck.random() < self._invents:
            if luck.random() < 0.5:
                self.made_up.add(invented := f"{luck.randrange(10**6, 10**7)}")
                return invented
            return str(luck.choice(self._values[column])).replace("\n", "<br>")
        for title, text in pages:
            pattern = (
                rf"^The {re.escape(column)} of {re.escape(title)} is (.*?)\.(?=\nThe \S+ of "
                rf"{re.escape(title)} is |\Z)"
            )
            if match := re.search(pattern, text, re.DOTALL | re.MULTILINE):
                return match[1].replace("\n", "<br>")
        return ""


def _searched(query: str) -> str:
    return f"<search>{html.escape(query, quote=False)}</search>"


def _reported(answer: str) -> str:
    return written(html.escape(answer, quote=False))


class Filled:
    """A run and its gold table."""

    def __init__(self, table: GoldTable, run: Run, seconds: float, prompt: int) -> None:
        assert isinstance(run.result, TableRun)
        self.table = table
        self.run = run
        self.result = run.result
        self.seconds = seconds
        self.prompt = prompt
        self.found = table_of(run.result)
        self.values = [[cell.value for cell in row.cells] for row in self.found.rows]
        cost = table_cost(self.found, run.result.asks, run.calls)
        self.spent = Counter[str]()
        for call in run.calls:
            assert call.usage is not None
            self.spent[call.role] += call.usage.total_tokens
        assert sum(amount.tokens for amount in (*cost.rows, cost.overhead)) == self.spent.total()

    def response(self, line_break: str = "<br>") -> str:
        """Return the table as the gateway writes it, or with other line breaks."""
        shown = to_markdown(self.table.columns, self.values).replace("<br>", line_break)
        return f"```markdown\n{shown}```"

    def supports(self, made_up: Collection[str] = ()) -> dict[str, Counter[Support]]:
        """Count the true, made-up and copied claims of right rows, without keys, by support."""
        gold = {self.table.title(row): row for row in self.table.rows}
        counts: dict[str, Counter[Support]] = {
            "true": Counter(),
            "made up": Counter(),
            "copied": Counter(),
        }
        for row, values in zip(self.found.rows, self.values, strict=True):
            named = zip(self.table.columns, values, row.cells, strict=True)
            title = ", ".join(value for column, value, _ in named if column.key)
            for column, cell in zip(self.table.columns, row.cells, strict=True):
                if not column.key and (gold_row := gold.get(title)):
                    for claim in cell.claims:
                        if _same(claim.value, gold_row[column.name]):
                            kind = "true"
                        elif claim.value in made_up:
                            kind = "made up"
                        else:
                            kind = "copied"
                        counts[kind][claim.support] += 1
        return counts


def _same(left_cell: str, right_cell: str) -> bool:
    return "".join(left_cell.split()) == "".join(right_cell.split())


async def _filled(
    folder: Path, pages: Pages, tables: Sequence[GoldTable], reader: Reader
) -> list[Filled]:
    by_id = {table.id: table for table in tables}
    filled = list[Filled]()

    def write(prompt: Prompt) -> str:
        task_id = re.search(r"ws_\w+", prompt.messages[1].content)
        assert task_id
        return by_id[task_id[0]].lead_turn(len(prompt.messages))

    class Lead(_Counting):
        """A lead that knows the number of registers."""

    lead = Lead(write, "backbone")
    terms: dict[str, Any] = {
        "max_tokens": 100_000,
        "report_chars": 100_000,
        "limits": TableLimits(),
    }
    async with gateway(folder, pages, reader, lead, **terms) as (filling, _):
        for table in tables:
            began = time.perf_counter()
            before = len(lead.prompts)
            run = await filling.fill_table(table.request, RequestOptions())
            prompts = [
                sum(_tokens(message.content) for message in prompt.messages)
                for prompt in lead.prompts[before:]
            ]
            filled.append(Filled(table, run, time.perf_counter() - began, max(prompts)))
            lead.prompts.clear()
            reader.prompts.clear()
    return filled


async def test_gold_tables_are_filled_from_their_pages(tmp_path: Path) -> None:
    """All rows with a whole key are found, with all cells that have a value; true values are
    supported.
    """
    tables = [GoldTable(task) for task in read_tasks(DATA)]
    pages = Pages(tmp_path, tables)
    filled = await _filled(tmp_path / "store", pages, tables, Reader(tables))
    groups: dict[str, list[Filled]] = {"all": filled}
    for kind in ("language", "size"):
        for member in filled:
            groups.setdefault(getattr(member.table.task, kind), []).append(member)
    ways: dict[str, tuple[RuleSet, str, bool]] = {
        "strict": ("strict", "<br>", False),
        "strict, marks such as NA and - as blanks": ("strict", "<br>", True),
        "official": ("official", "<br>", False),
        "official, line breaks as blanks": ("official", " ", False),
    }
    scores = {
        (name, member.table.id): await scores_of(
            member.table.scored(blank=blank), member.response(line_break), CellJudge(), rules
        )
        for name, (rules, line_break, blank) in ways.items()
        for member in filled
    }
    rows = list[dict[str, object]]()
    for group, members in groups.items():
        for name in ways:
            rows.append({"tasks": group, "number": len(members), "rules": name})
            for metric in (field for field in TableScores.__struct_fields__ if field != "why"):
                rows[-1] |= {
                    metric: 100
                    * fmean(getattr(scores[name, member.table.id], metric) for member in members)
                }
    show(
        "Gold pages, upper bounds of the machinery; judged cells are right where they are equal",
        rows,
    )
    show("The same", [_sizes(group, members) for group, members in groups.items()])
    stored_bytes = sum(
        path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file()
    )
    print(
        f"\n{pages.looked_up:,} searches were by title; the store holds "
        f"{stored_bytes / _rows(filled) / 1000:.1f} kB a row."
    )
    assert (
        fmean(
            scores["strict, marks such as NA and - as blanks", member.table.id].item_f1
            for member in filled
        )
        >= 0.99
    )
    assert all(member.result.outcome == "filled" for member in filled)


def _rows(group: Sequence[Filled]) -> int:
    return sum(len(filled.table.rows) for filled in group)


def _sizes(name: str, group: Sequence[Filled]) -> dict[str, object]:
    """Return sizes, costs and pace of some runs."""
    spent = sum((filled.spent for filled in group), Counter[str]())
    true = sum((filled.supports()["true"] for filled in group), Counter[Support]())
    cells = [cell for filled in group for row in filled.table.rows for cell in row.values()]
    figures: dict[str, object] = {
        "tasks": name,
        "gold rows": _rows(group),
        "gold cells": len(cells),
    }
    figures |= {
        "rows": sum(len(filled.values) for filled in group),
        "marks of no value": sum(map(is_blank, cells)),
    }
    figures |= {
        "asks": sum(len(filled.result.asks) for filled in group),
        "tokens a row": spent.total() / _rows(group),
    }
    figures |= {"of executors": spent["execution"] / spent.total()}
    figures |= {"lead's largest prompt": max(filled.prompt for filled in group)}
    figures |= {"rows a second": _rows(group) / sum(filled.seconds for filled in group)}
    return figures | {
        "true claims": true.total(),
        "unsupported": true["unsupported"] / true.total(),
    }


async def test_fabrications_have_no_support(tmp_path: Path) -> None:
    """A copied value may be in a passage about its own row, but is hardly ever stated; if it is,
    this row has the value in another column.
    """
    tables = [GoldTable(task) for task in read_tasks(DATA) if task.rows <= 60]
    reader = Reader(tables, invents=0.1)
    filled = await _filled(tmp_path / "store", Pages(tmp_path, tables), tables, reader)
    supports: dict[str, Counter[Support]] = {}
    for run in filled:
        for kind, counts in run.supports(reader.made_up).items():
            supports.setdefault(kind, Counter()).update(counts)
    rows = [
        {
            "claims": kind,
            "number": counts.total(),
            **{support: counts[support] / counts.total() for support in get_args(Support)},
        }
        for kind, counts in supports.items()
    ]
    show("Gold pages of up to 60 rows, a tenth of the cells invented", rows)
    assert supports["made up"]["unsupported"] >= 0.95 * supports["made up"].total()
    assert supports["copied"]["stated"] <= 0.05 * supports["copied"].total()
    assert supports["true"]["stated"] >= 0.98 * supports["true"].total()
