"""`rolegate sft mini-world`: write a world as files.

These are corpus.jsonl, questions.jsonl with gold plans, reports and answers, vocabulary.txt, which
all questions stay in, registers.jsonl, pages that list its things, and rolegate.toml: the preset
mini over this world. With --wide, the corpus holds registers, and the questions are tables for
`rolegate sft rollout`; in WideSearch's form, tasks.jsonl and gold/ID.csv, and reach.jsonl, which
tells where each cell is to be found.
"""

import csv
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomlkit
from msgspec import Meta

from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, Question
from executor_sft.miniworld.relations import OCCUPATIONS, RELATIONS
from executor_sft.miniworld.wide import Knobs, WideWorld
from executor_sft.miniworld.world import Side, World
from router.errors import BadConfig
from router.protocol import Passage
from router.protocol.vocabulary import words
from serving.config.config import Config
from serving.config.file import load_config, preset
from serving.files import write_atomically

REGISTERS = "registers.jsonl"
_YEAR = {"preprocess": ["extract_number"], "metric": ["number_near"], "criterion": 0.0}
_TEXT = {"preprocess": ["norm_str"], "metric": ["exact_match"]}


class Options(Knobs, frozen=True, kw_only=True):
    """Options of the command; the knobs are those of wide worlds."""

    out: Annotated[Path, Meta(description="where the files go")]
    seed: Annotated[int, Meta(description="of the world; the demo's has 7")] = 7
    side: Annotated[Side, Meta(description="worlds of two sides share no name")] = "test"
    questions: Annotated[int, Meta(ge=0, description="how many")] = 200
    wide: Annotated[
        bool, Meta(description="a wide world, with registers, and tables instead of questions")
    ] = False
    tables: Annotated[
        int, Meta(ge=1, description="of each size class; fewer where a world has no more")
    ] = 20
    force: Annotated[bool, Meta(description="write over what is there")] = False


def run(options: Options) -> int:
    """Write a world; the exit status."""
    out = options.out
    if not options.force and out.is_dir() and any(out.iterdir()):
        raise BadConfig(
            f"--out {out}: is not empty; name another folder, or write over what is "
            "there with --force."
        )
    if options.wide:
        wide = WideWorld(options.seed, options.side, options, tasks=options.tables)
        write_corpus(out, wide.library.passages, _vocabulary_of_tables(wide))
        export_tables(wide, out)
        print(f"{out}: a wide world of seed {options.seed} with {len(wide.tasks)} tables")
    else:
        questions = export(World(options.seed, options.side), out, options.questions)
        wide = WideWorld.undisturbed(options.seed, options.side)
        write_corpus(out, wide.registers, _vocabulary_of_tables(wide), name=REGISTERS)
        print(f"{out}: a world of seed {options.seed} with {len(questions)} questions")
    more = () if options.wide else (REGISTERS,)
    write_config(over(load_config(preset("mini")), out.resolve(), *more), out / "rolegate.toml")
    return 0


def export(world: World, folder: Path, questions: int, prefix: str = "mini") -> list[Question]:
    """Write `corpus.jsonl`, with ids that begin with `prefix`, `questions.jsonl` and
    `vocabulary.txt` into `folder`. Returns the questions.
    """
    library = Library(world, prefix)
    examiner = Examiner(world, library)
    asked = [examiner.draw() for _ in range(questions)]
    write_corpus(folder, library.passages, vocabulary_of(world), asked)
    return asked


def export_tables(wide: WideWorld, folder: Path) -> None:
    """Write `tasks.jsonl` with `gold/<id>.csv`; the same as `questions.jsonl`, for `rolegate sft
    rollout`; and, to tell errors apart, `reach.jsonl`: where each gold cell is found, and the names
    in registers that do not belong.
    """
    (folder / "gold").mkdir(parents=True, exist_ok=True)
    tasks = []
    questions = []
    reaches = []
    for task in wide.tasks:
        rules = {name: _YEAR if name == "year" else _TEXT for name in task.columns}
        evaluation = json.dumps(
            {"unique_columns": task.columns[:1], "required": task.columns, "eval_pipeline": rules}
        )
        written = {"query": task.query, "evaluation": evaluation, "language": "en"}
        tasks.append({"instance_id": task.id, **written})
        stale = sorted(wide.listed(task) - {row.mention for row in task.rows})
        reaches.append(
            {"instance_id": task.id, "size": task.size, "reach": wide.reach(task), "stale": stale}
        )
        rows = [
            [row.mention, *(wide.gold(row, one) for one in task.relations)] for row in task.rows
        ]
        asked = {"question": task.question, "columns": task.schema.columns, "rows": rows}
        questions.append({"id": task.id, **asked})
        with (folder / "gold" / f"{task.id}.csv").open(
            "w", encoding="utf-8-sig", newline=""
        ) as file:
            csv.writer(file).writerows([task.columns, *rows])
    for name, lines in (("tasks", tasks), ("questions", questions), ("reach", reaches)):
        (folder / f"{name}.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(lines))


def write_corpus(
    folder: Path,
    passages: Iterable[Passage],
    vocabulary: str = "",
    questions: Iterable[Question] = (),
    name: str = "corpus.jsonl",
) -> None:
    """Write the file `name`, and `vocabulary.txt` and `questions.jsonl` where there are any, into
    `folder`, which is made where it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encoder = msgspec.json.Encoder()
    documents = [{"id": page.id, "title": page.title, "text": page.text} for page in passages]
    (folder / name).write_bytes(encoder.encode_lines(documents))
    if vocabulary:
        (folder / "vocabulary.txt").write_text(vocabulary, "utf-8")
    if questions:
        (folder / "questions.jsonl").write_bytes(encoder.encode_lines(questions))


def vocabulary_of(world: World, more: Iterable[str] = ()) -> str:
    """The vocabulary file of a world: words of wordings and `more`, then all names
    (`router.protocol.vocabulary`).
    """
    wordings = itertools.chain.from_iterable(
        (relation.noun, *relation.ask, *(text for text, _ in relation.compare))
        for relation in RELATIONS
    )
    known = {
        word.strip("?,.").format(x="", a="", b="")
        for wording in wordings
        for word in wording.split()
    }
    names = {name for entity in world.entities for name in (entity.name, entity.alias) if name}
    return "\n".join(
        [
            *sorted(filter(None, known.union(set(more) - words(" ".join(names))))),
            *OCCUPATIONS,
            "",
            *sorted(names),
            "",
        ]
    )


def _vocabulary_of_tables(wide: WideWorld) -> str:
    """The vocabulary with the words in which its tables are asked for."""
    return vocabulary_of(wide.world, set[str]().union(*(words(task.query) for task in wide.tasks)))


def over(config: Config, world: Path, *more: str) -> Config:
    """The same models over the world whose files are in the folder `world`, its corpus and `more`;
    its index, its runs and the versions that are made of these are kept there.
    """
    documents = tuple(str(world / name) for name in ("corpus.jsonl", *more))
    retrieval = msgspec.structs.replace(
        config.retrieval, documents=documents, index=str(world / "index"), address=None
    )
    search = msgspec.structs.replace(
        config.search, vocabulary=config.search.vocabulary and str(world / "vocabulary.txt")
    )
    server = msgspec.structs.replace(config.server, store=f"sqlite:///{world}/runs.db")
    versions = msgspec.structs.replace(config.versions, folder=str(world / "versions"))
    return msgspec.structs.replace(
        config, retrieval=retrieval, search=search, server=server, versions=versions
    )


def write_config(config: msgspec.Struct, file: Path) -> None:
    """Write it as TOML: a gateway's, or another kind."""
    write_atomically(file, tomlkit.dumps(_without_none(msgspec.to_builtins(config))).encode())


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
