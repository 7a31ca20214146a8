"""Train a model that fills tables alone, and measure it: the baseline `wide_single` with a context
of 8,192 tokens, whose figures are in docs/LOG.md.

    python -m scripts.single_agent train FOLDER [--steps 1200]
    python -m scripts.single_agent measure WORLD FOLDER/model [--searches 60 --json FILE]

`train` continues the training of the demo's teacher, which can already search and report, on gold
conversations about training worlds. `measure` fills the tables of a test world, which `rolegate sft
mini-world --wide` has written to the folder WORLD. Each search shows one passage, so that the
conversation about a table of 40 rows fits into the context.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3ForCausalLM

from benchmarks.baselines.single_agent import LAST_ANSWER, SingleAgent
from executor_sft.asking import in_flight
from executor_sft.minimodel.model import load_tokenizer
from executor_sft.minimodel.stream import Encoded, encode
from executor_sft.minimodel.training import Schedule, _checkpoint, _groups, _resume
from executor_sft.miniworld.dialogues import Dialogue, DialogueTurn
from executor_sft.miniworld.wide import FORMS, EntitySet, Knobs, TableTask, WideWorld
from executor_sft.miniworld.world import Entity, Fact
from executor_sft.questions import Question, read_questions
from executor_sft.runtime import Runtime, open_runtime
from router.protocol import Passage, prompts
from router.search.agent import ExecutorLimits
from router.table.filling import TABLE_REPORTING
from router.table.scores import table_score
from router.table.table_delegation import described
from router.trace.table import Column, Schema
from serving.config.config import Config
from serving.config.file import load_config
from serving.retrieval.lexical import LexicalIndex, write_lexical

SYSTEM = "Fill the table: search for lists of rows, then for each row, then write the table."
TEACHER = Path(__file__).parents[1] / "serving" / "models" / "mini-teacher"
CONTEXT_TOKENS = 8192
_SHORT_ROW = 4096
_WAITING = 24
"""Number of waiting conversations, from which rows are packed."""
DONE = "done"
"""The agent's answer."""
_NOTED = re.compile(r"\| @\d+ \|([^#<\n]*)\|")
"""Matches a noted row of the table."""
_DECISIVE = 2.0
"""Added loss weight of the tokens that decide most: the first token of a turn, which says whether a
row is noted, and the first token after a name's label.
"""
_YEARS = 2
"""Number of searches for members' own pages, per set of rows."""
_LABELS = 100
"""Number of labels for names (`#1`, `#2`, …), and of labels for rows (`@1`, `@2`, …). Each label is
one token, because with labels of several tokens, the model often confuses the order of the names.
"""


class _Searcher:
    """Searches the passages of a world by words, as a stand-in for the retriever."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages
        with TemporaryDirectory() as folder:
            write_lexical(Path(folder), [f"{page.title}\n{page.text}" for page in passages])
            self._index = LexicalIndex.open(Path(folder))

    def best(self, query: str) -> Passage:
        (hits,) = self._index.search([query], 1)
        return self._passages[hits[0].row]


def table_request(question: str, columns: Sequence[Column]) -> str:
    """Return the text with which the agent is asked for a table, in training and in measuring."""
    names = ", ".join(map(described, columns))
    return f"{question}\n\nColumns, keys with a star: {names}"


class TableAlone:
    """Writes the gold conversation of a single agent about one table.

    The agent asks for the registers of each set of rows, one after another, and for members' own
    pages. It notes the names that it finds, each after a label (`#3 Dasist`). Then it searches for
    each row by name, and once more if the first passage refers to another page. After each row, it
    notes the row as a line of the table, also after a label (`| @2 | Dasist | 1170 |`), or `-` if
    the row contradicts a condition. The last name of the list is `end`; there, the agent stops. The
    noted lines are its table, so that it need not copy them.
    """

    def __init__(
        self, world: WideWorld, searcher: _Searcher, task: TableTask, searches: int | None
    ) -> None:
        """`searches`: max searches; the last search result then also asks for the table. None for
        no limit.
        """
        self._world = world
        self._searcher = searcher
        self._task = task
        self._left = searches
        self._note = ""
        request = prompts.request(table_request(task.question, task.schema.columns))
        self._turns = [DialogueTurn("system", SYSTEM), DialogueTurn("user", request)]
        self._rows = 0

    @property
    def _over(self) -> bool:
        return self._left is not None and self._left <= 0

    def dialogue(self) -> Dialogue:
        """Return the whole conversation."""
        names: dict[str, int] = {}
        for group in self._task.sets:
            self._list(group, names)
        entities = {entity.mention: entity for entity in self._world.world.entities}
        end = f" #{len(names) + 1} end"
        if names and not self._over:
            comma = "," if self._note else ""
            self._note += f"{comma}{end} | row | {' | '.join(self._task.columns)} |"
        for name, number in names.items():
            if self._over:
                break
            self._note += f" #{number} {name}"
            self._fill(entities[name])
        if names and not self._over:
            self._note += end
        return [*self._turns, DialogueTurn("answer", f"{self._note}<answer>{DONE}</answer>")]

    def _search(self, query: str) -> Passage:
        """Add a search and its result to the conversation, and return the passage that it finds."""
        page = self._searcher.best(query)
        if self._left is not None:
            self._left -= 1
        text = f"{self._note}<search>{prompts.request(query)}</search>"
        self._turns.append(DialogueTurn("search", text))
        self._note = ""
        shown = prompts.documents([page], last=False)
        self._turns.append(DialogueTurn("user", f"{shown}\n{LAST_ANSWER}" if self._over else shown))
        return page

    def _list(self, group: EntitySet, names: dict[str, int]) -> None:
        """Search for the members of a set, and add new names with their numbers to `names`."""
        for question in self._questions(group):
            if self._over:
                return
            page = self._search(question)
            listed = [
                other.stated[page.id].names for other in self._task.sets if page.id in other.stated
            ]
            new = [name for name in dict.fromkeys(itertools.chain(*listed)) if name not in names]
            for name in new:
                names[name] = len(names) + 1
            self._note = ",".join(f" #{names[name]} {name}" for name in new)
            register = group.register_in(question)
            if register is not None and page.id not in register:
                self._missing_register = True

    def _questions(self, group: EntitySet) -> Iterator[str]:
        """Yield questions for registers until a register is not found. Then yield questions for
        members' own pages.
        """
        self._missing_register = False
        for turn in itertools.count():
            question = group.discoveries(turn, 1)[0]
            yield question
            if self._missing_register:
                break
        for turn in range(_YEARS):
            yield group.discoveries(turn, 0)[0]

    def _fill(self, row: Entity) -> None:
        """Search for the values of a row, and note the row as a line of the table."""
        world = self._world.world
        library = self._world.library
        relations = self._task.relations
        page = self._search(row.mention)
        seen = {page.id}
        own = library.of_entity[row.mention][0]
        if own not in seen and not self._over:
            page = self._search(relations[0].ask[0].format(x=row.mention))
            seen.add(page.id)

        values: dict[str, str] = {}
        for relation in relations:
            fact = world.facts.get((row.mention, relation.name))
            value = ""
            if fact and self._states(fact, seen):
                value = fact.value
            elif fact and fact.detour and own in seen and not self._over:
                query = relation.ask[0].format(x=fact.via)
                if fact.detour == "redirect":
                    query = f"{fact.via} Chronicle"
                page = self._search(query)
                seen.add(page.id)
                value = fact.value if self._states(fact, seen) else ""
            values[relation.name] = value

        if self._excluded(row, values):
            self._note += " -"
            return
        self._rows += 1
        cells = [f"@{self._rows}", row.mention, *(value or "-" for value in values.values())]
        self._note += f" | {' | '.join(cells)} |"

    def _states(self, fact: Fact, seen: set[str]) -> bool:
        """Return whether one of the passages with the ids `seen` states the fact's value."""
        states = self._world.library.states
        subjects = (fact.subject.mention, fact.via)
        statements = (states.get((subject, fact.relation.name)) for subject in subjects)
        return any(statement.passage_id in seen for statement in statements if statement)

    def _excluded(self, row: Entity, values: dict[str, str]) -> bool:
        """Return whether the values contradict a condition of the table."""
        owner = values.get(FORMS[row.kind].link)
        if owner and owner not in {group.owner for group in self._task.sets}:
            return True
        years = [
            values[relation.name] for relation in self._task.relations if relation.value == "year"
        ]
        before = self._task.sets[0].before
        return bool(before and years and years[0] and int(years[0]) >= before)


def lessons(seed: int) -> Iterator[Dialogue]:
    """Yield gold conversations about training worlds, endlessly. `seed`: number of the first world;
    the next worlds have the next higher numbers.
    """
    order = random.Random(11)
    for number in itertools.count(seed):
        rng = random.Random(f"{number}/alone in tables")
        shares = {name: rng.uniform(0, 0.3) for name in ("stale", "twice", "conflict")}
        hubs = rng.choice((5, 5, 8, 20))
        knobs = Knobs(hubs=hubs, listed=rng.uniform(0.7, 1), unstated=0.05, **shares)
        world = WideWorld(number, "train", knobs, tasks=40)
        searcher = _Searcher(world.library.passages)
        tasks = list(world.tasks)
        order.shuffle(tasks)
        small = [task for task in tasks if task.size == "small"]
        others = [task for task in tasks if task.size != "small"]
        drawn = [*others[:24], *small[:36]]
        order.shuffle(drawn)
        for task in drawn:
            searches = order.choice((None, None, order.randint(3, 60)))
            yield TableAlone(world, searcher, task, searches).dialogue()


def rows(source: Iterator[Encoded]) -> Iterator[Encoded]:
    """Pack conversations into rows of 4,096 or 8,192 tokens, and yield the rows. The conversations
    of a row can attend to each other.
    """
    rng = random.Random(12)
    waiting: list[Encoded] = []
    for encoded in source:
        if len(encoded[0]) <= CONTEXT_TOKENS:
            waiting.append(encoded)
        if len(waiting) < _WAITING:
            continue
        row = [waiting.pop(0)]
        length = _SHORT_ROW if len(row[0][0]) <= _SHORT_ROW else CONTEXT_TOKENS
        room = length - len(row[0][0])
        while fitting := [other for other in waiting if len(other[0]) <= room]:
            row.append(max(fitting, key=lambda other: len(other[0])))
            waiting.remove(row[-1])
            room -= len(row[-1][0])
        rng.shuffle(row)
        ids = list(itertools.chain.from_iterable(tokens for tokens, _ in row))
        written = list(itertools.chain.from_iterable(marks for _, marks in row))
        yield ids + [0] * room, written + [False] * room


def _loss(model: Qwen3ForCausalLM, tokens: Tensor, weights: Tensor) -> Tensor:
    logits = model(input_ids=tokens, use_cache=False).logits
    losses = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none"
    )
    return (losses * weights).sum() / weights.sum()


def train(folder: Path, steps: int, threads: int) -> None:
    """Train the model, and save it in `folder`/model. Resumes an interrupted training."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(threads)
    torch.manual_seed(5)  # for the new labels' embeddings
    tokenizer = load_tokenizer(TEACHER)
    model = Qwen3ForCausalLM.from_pretrained(TEACHER, dtype=torch.float32)
    model.config.max_position_embeddings = CONTEXT_TOKENS
    known = len(tokenizer)
    tokenizer.add_tokens([f"{mark}{n}" for mark in "#@" for n in range(1, _LABELS + 1)])
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    schedule = Schedule(steps, 1.5e-3, (0.2, 0.05), warm_up=50)
    optimizer = torch.optim.AdamW(_groups(model), lr=schedule.peak_rate, betas=(0.9, 0.95))
    checkpoint = folder / "checkpoint.pt"
    step = _resume(model, optimizer, checkpoint)
    compiled: Any = torch.compile(_loss, dynamic=False)
    source = rows(encode(dialogue, tokenizer) for dialogue in lessons(700_000))
    for ids, written in itertools.islice(source, step, steps):
        began = time.monotonic()
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        first, last = schedule.context_weight
        other = first + (last - first) * step / steps
        tokens = torch.tensor([ids])
        own = torch.tensor(written)
        labels = (tokens[0, :-1] >= known) & (tokens[0, :-1] < known + _LABELS)
        begins = own[1:] & ~own[:-1]
        weights = torch.where(own[1:], 1.0, other) + _DECISIVE * (labels.float() + begins.float())
        weights *= tokens[0, 1:] != 0
        with torch.autocast("cpu", torch.bfloat16):
            loss = compiled(model, tokens, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        seconds = time.monotonic() - began
        print(f"step {step} of {steps}: {len(ids)} tokens, loss {loss:.3f}, {seconds:.1f} s")
        if step % 25 == 0:
            _checkpoint(model, optimizer, step, checkpoint)
    _checkpoint(model, optimizer, step, checkpoint)
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    tokenizer.model_max_length = CONTEXT_TOKENS
    tokenizer.save_pretrained(folder / "model")


class Measured(msgspec.Struct):
    """A table that the single agent wrote, with its scores."""

    id: str
    group: str
    rows: int
    """Number of right rows."""
    item_f1: float
    row_f1: float
    success: bool
    searches: int
    tokens: int
    finished: bool
    """True if the agent stopped by itself, False if its searches or its context were used up."""


async def fill(runtime: Runtime, question: Question, searches: int) -> Measured:
    """Let the single agent fill a table with at most `searches` searches, and return its scores."""
    assert question.table
    role = runtime.role("delegation", runtime.config.roles.delegation)
    limits = ExecutorLimits(max_turns=searches + 4, max_searches=searches, top_k=1)
    agent = SingleAgent(role, runtime.retriever, limits)
    context = replace(runtime.context(1800), reporting=TABLE_REPORTING)
    columns = question.table.columns
    request = table_request(question.table.question, columns)
    trajectory = await agent.run(request, context)
    outputs = trajectory.answering.outputs if trajectory.answering else ()
    rows = noted_rows([output.text for output in outputs], len(columns))
    score = table_score(Schema(columns), rows, question.rows)
    usages = (call.usage for call in context.ledger.calls)
    return Measured(
        question.id,
        question.group,
        len(question.rows),
        score.item_f1,
        score.row_f1,
        score.success,
        len(trajectory.executions[0].searches),
        sum(usage.total_tokens for usage in usages if usage),
        trajectory.answer == DONE,
    )


def noted_rows(outputs: Sequence[str], columns: int) -> list[tuple[str, ...]]:
    """Return the rows that an agent has noted in its outputs, the first row of each name only."""
    rows: dict[str, tuple[str, ...]] = {}
    for output in outputs:
        for line in _NOTED.findall(output):
            cells = tuple(cell.strip() for cell in line.split("|"))
            if len(cells) == columns:
                rows.setdefault(cells[0], tuple("" if cell == "-" else cell for cell in cells))
    return list(rows.values())


def alone(config: Config, model: Path, folder: Path) -> Config:
    """Return a copy of `config` in which all roles use the model in the folder `model`, on one
    engine. `folder`: folder in which the file of the system prompt is written.
    """
    prompt = folder / "system.txt"
    prompt.write_text(SYSTEM)
    engine = replace(config.engines["backbone"], path=str(model.resolve()))
    roles = config.roles
    delegation = replace(roles.delegation, prompt=str(prompt), max_tokens=256)
    execution = replace(roles.execution, engine="backbone", model=roles.delegation.model)
    return replace(
        config,
        engines={"backbone": engine},
        roles=replace(roles, delegation=delegation, execution=execution),
        distillation=replace(config.distillation, teacher=None),
    )


async def measure(
    world: Path, model: Path, searches: Sequence[int], out: Path | None
) -> dict[int, list[Measured]]:
    """Fill the tables of `world` once with each max number of `searches`. Print the means, and
    return the figures of each table by number of searches.
    """
    measured: dict[int, list[Measured]] = {}
    questions, _ = read_questions(world / "questions.jsonl", tables=True)
    with TemporaryDirectory() as folder:
        config = alone(load_config(world / "rolegate.toml"), model, Path(folder))
        async with open_runtime(config, print) as runtime:
            for most in searches:
                filled: list[Measured] = []

                async def ask(question: Question, most: int = most, filled: Any = filled) -> None:
                    filled.append(await fill(runtime, question, most))

                await in_flight(ask, questions, 6, lambda: None)
                measured[most] = sorted(filled, key=lambda table: table.id)
                _print(most, filled)
                if out:
                    out.write_bytes(msgspec.json.encode(measured))
    return measured


def _print(most: int, tables: Sequence[Measured]) -> None:
    sizes = {"all": (0, 10**9), "up to 12": (0, 12), "13 to 40": (13, 40), "over 40": (41, 10**9)}
    for name, (low, high) in sizes.items():
        part = [table for table in tables if low <= table.rows <= high]
        if part:
            figures = {
                "tables": len(part),
                "item_f1": round(100 * fmean(table.item_f1 for table in part), 1),
                "row_f1": round(100 * fmean(table.row_f1 for table in part), 1),
                "success": round(100 * fmean(table.success for table in part), 1),
                "searches": round(fmean(table.searches for table in part), 1),
                "tokens": round(fmean(table.tokens for table in part)),
                "finished": sum(table.finished for table in part),
            }
            print(f"{most} searches, {name} rows: {json.dumps(figures)}", flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    training = commands.add_parser("train", help="train the model")
    training.add_argument("folder", type=Path, help="folder for the model and its checkpoint")
    training.add_argument(
        "--steps", type=int, default=1200, help="training steps, one row each (default: 1200)"
    )
    training.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="CPU threads (default: all cores)"
    )
    measuring = commands.add_parser(
        "measure", help="fill the tables of a test world, and score them"
    )
    measuring.add_argument("world", type=Path, help="folder of `sft mini-world --wide`")
    measuring.add_argument("model", type=Path, help="folder of the trained model")
    measuring.add_argument(
        "--searches", type=int, nargs="+", default=[60], help="max searches per table"
    )
    measuring.add_argument("--json", type=Path, help="write each table's figures to this file")
    options = parser.parse_args()
    if options.command == "train":
        train(options.folder, options.steps, options.threads)
    else:
        asyncio.run(measure(options.world, options.model, options.searches, options.json))


if __name__ == "__main__":
    main()
