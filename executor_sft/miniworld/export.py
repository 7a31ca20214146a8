"""`rolegate sft mini-world`: generate a fictional world, and write its files.

corpus.jsonl     pages about the people, cities, books and other things of the world
questions.jsonl  questions with right (gold) sub-queries, reports and answers
vocabulary.txt   all words that questions may use
registers.jsonl  registers (pages with lists of names), for tables
rolegate.toml    config like the preset mini, but with this world's documents

With --wide, the registers are part of the corpus, and questions.jsonl has requests for tables with
their right rows, for `rolegate sft rollout`. tasks.jsonl and gold/ID.csv have the same tables in
WideSearch's format. reach.jsonl has the place of each cell's value in the corpus.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tomlkit
from msgspec import Meta

from executor_sft.command import Count
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, MiniQuestion
from executor_sft.miniworld.relations import OCCUPATIONS, RELATIONS
from executor_sft.miniworld.talks import WORDS
from executor_sft.miniworld.wide import Knobs, WideWorld
from executor_sft.miniworld.world import Side, World
from executor_sft.questions import Question
from executor_sft.tables.output import write_tables
from router.errors import BadConfig
from router.protocol import Passage
from router.protocol.vocabulary import words
from router.table import TableRequest
from serving.config.config import Config
from serving.config.file import load_config, preset
from serving.files import write_atomically

REGISTERS = "registers.jsonl"


class Options(Knobs, frozen=True, kw_only=True):
    """Options of `rolegate sft mini-world`. The base class has those that make tables more or less
    difficult.
    """

    out: Path
    """folder to write the files to"""
    seed: int = 7
    """seed of the world; the demo uses seed 7"""
    side: Side = "test"
    """what the world is for: train (training) or test (evaluation). No name occurs both in a train
    world and in a test world
    """
    questions: Annotated[int, Meta(ge=0)] = 200
    """number of questions; ignored with --wide"""
    wide: bool = False
    """write a world with requests for tables instead of questions"""
    tables: Count = 20
    """with --wide: max number of tables of each of the three sizes (small, medium, large)"""
    edition: Count = 1
    """with --wide: number of the edition; all editions have the same facts, but each has its own
    wordings, lists of names (registers) and deliberately wrong statements
    """
    wording: Literal["widesearch", "plain"] = "widesearch"
    """with --wide: widesearch (each question ends with the columns and the form of the table, as in
    WideSearch), or plain (without them)
    """
    force: bool = False
    """write into a folder that is not empty, and overwrite files there"""


def run(options: Options) -> int:
    """Write a world and return the exit status."""
    out = options.out
    if not options.force and out.is_dir() and any(out.iterdir()):
        raise BadConfig(
            f"--out {out}: the folder is not empty; name another folder, or pass --force to "
            "overwrite the files in it."
        )
    if options.wide:
        wide = WideWorld(
            options.seed,
            options.side,
            options,
            tasks=options.tables,
            edition=options.edition,
        )
        write_corpus(out, wide.library.passages, _vocabulary_of_tables(wide))
        export_tables(wide, out, plain=options.wording == "plain")
        print(f"{out}: a wide world of seed {options.seed} with {len(wide.tasks)} tables")
    else:
        questions = export(World(options.seed, options.side), out, options.questions)
        wide = WideWorld.undisturbed(options.seed, options.side)
        write_corpus(out, wide.registers, _vocabulary_of_tables(wide), name=REGISTERS)
        print(f"{out}: a world of seed {options.seed} with {len(questions)} questions")
    more = () if options.wide else (REGISTERS,)
    config = over(load_config(preset("mini")), out.resolve(), *more)
    if options.wide:  # vectors hardly distinguish "register A" from "register B"
        retrieval = msgspec.structs.replace(config.retrieval, lexical=True)
        config = msgspec.structs.replace(config, retrieval=retrieval)
    write_config(config, out / "rolegate.toml")
    return 0


def export(
    world: World,
    folder: Path,
    questions: int,
    prefix: str = "mini",
) -> list[MiniQuestion]:
    """Write `corpus.jsonl`, `questions.jsonl` and `vocabulary.txt` of a world into `folder`, and
    return the questions. `questions`: number of questions. `prefix`: beginning of the passages'
    ids.
    """
    library = Library(world, prefix)
    examiner = Examiner(world, library)
    asked = [examiner.draw() for _ in range(questions)]
    write_corpus(folder, library.passages, vocabulary_of(world), asked)
    return asked


def export_tables(wide: WideWorld, folder: Path, *, plain: bool = False) -> None:
    """Write the tables of a world into `folder`. `plain`: leave the columns and the form of the
    table out of the questions.

    `tasks.jsonl` and `gold/<id>.csv` have the tables in WideSearch's format, and `questions.jsonl`
    has them in the format of `rolegate sft rollout`. `reach.jsonl` is for the analysis of errors.
    For each table, it has the place of every gold cell (`Reach`), and the wrong names in registers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    questions = []
    reaches = []
    for task in wide.tasks:
        stale = sorted(wide.listed(task) - {row.mention for row in task.rows})
        reaches.append(
            {"instance_id": task.id, "size": task.size, "reach": wide.reach(task), "stale": stale}
        )
        rows = tuple(
            (row.mention, *(wide.gold(row, relation) for relation in task.relations))
            for row in task.rows
        )
        request = TableRequest(task.question, task.schema.columns)
        group = f"{wide.world.seed}-{task.columns[0]}"
        questions.append(
            Question(task.id, task.question, (), table=request, rows=rows, group=group)
        )
    write_tables(folder, questions, plain=plain)
    (folder / "reach.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(reaches))


def write_corpus(
    folder: Path,
    passages: Iterable[Passage],
    vocabulary: str = "",
    questions: Iterable[MiniQuestion] = (),
    name: str = "corpus.jsonl",
) -> None:
    """Write passages to the file `name` in `folder`, which is created if missing. Also write
    `vocabulary.txt` and `questions.jsonl`, unless `vocabulary` or `questions` is empty.
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
    """Return the content of a world's vocabulary file (`router.protocol.vocabulary`): first the
    words that questions may use, including `more`, then all names.
    """
    known = set(WORDS)
    for relation in RELATIONS:
        for wording in (relation.noun, *relation.ask, *(text for text, _ in relation.compare)):
            stripped = (word.strip("?,.") for word in wording.split())
            known.update(word.format(x="", a="", b="") for word in stripped)
    names = set[str]()
    for entity in world.entities:
        names.update(filter(None, (entity.name, entity.alias)))
    known |= set(more) - words(" ".join(names))
    return "\n".join([*sorted(filter(None, known)), *OCCUPATIONS, "", *sorted(names), ""])


def _vocabulary_of_tables(wide: WideWorld) -> str:
    """Return the content of a world's vocabulary file, with the words of requests for tables."""
    return vocabulary_of(wide.world, set[str]().union(*(words(task.query) for task in wide.tasks)))


def over(config: Config, world: Path, *more: str) -> Config:
    """Return a copy of `config` with the documents of a world: `corpus.jsonl` and the files `more`
    in the folder `world`. Index, runs and versions are kept in this folder, too.
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
        config,
        retrieval=retrieval,
        search=search,
        server=server,
        versions=versions,
    )


def write_config(config: msgspec.Struct, file: Path) -> None:
    """Write a config, or a part of one, to `file` as TOML."""
    write_atomically(file, tomlkit.dumps(_without_none(msgspec.to_builtins(config))).encode())


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
