"""`rolegate sft mini-world`: write a world as files.

These are corpus.jsonl, questions.jsonl with gold plans, reports and answers, vocabulary.txt, which all questions stay
in, and rolegate.toml: the preset mini over this world.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomlkit
from msgspec import Meta

from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, Question
from executor_sft.miniworld.relations import OCCUPATIONS, RELATIONS
from executor_sft.miniworld.world import Side, World
from router.errors import BadConfig
from router.protocol import Passage
from serving.config.config import Config
from serving.config.file import load_config, preset
from serving.files import write_atomically


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command."""

    out: Annotated[Path, Meta(description="where the files go")]
    seed: Annotated[int, Meta(description="of the world; the demo's has 7")] = 7
    side: Annotated[Side, Meta(description="worlds of two sides share no name")] = "test"
    questions: Annotated[int, Meta(ge=0, description="how many")] = 200
    force: Annotated[bool, Meta(description="write over what is there")] = False


def run(options: Options) -> int:
    """Write a world; the exit status."""
    out = options.out
    if not options.force and out.is_dir() and any(out.iterdir()):
        raise BadConfig(f"--out {out}: is not empty; name another folder, or write over what is there with --force.")
    questions = export(World(options.seed, options.side), out, options.questions)
    write_config(over(load_config(preset("mini")), out.resolve()), out / "rolegate.toml")
    print(f"{out}: a world of seed {options.seed} with {len(questions)} questions")
    return 0


def export(world: World, folder: Path, questions: int, prefix: str = "mini") -> list[Question]:
    """Write `corpus.jsonl`, with ids that begin with `prefix`, `questions.jsonl` and `vocabulary.txt` into `folder`.
    Returns the questions.
    """
    library = Library(world, prefix)
    examiner = Examiner(world, library)
    asked = [examiner.draw() for _ in range(questions)]
    write_corpus(folder, library.passages, asked)
    (folder / "vocabulary.txt").write_text(vocabulary_of(world), "utf-8")
    return asked


def write_corpus(folder: Path, passages: Iterable[Passage], questions: Iterable[Question]) -> None:
    """Write `corpus.jsonl` and `questions.jsonl` into `folder`, which is made where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = msgspec.json.Encoder()
    documents = [{"id": page.id, "title": page.title, "text": page.text} for page in passages]
    (folder / "corpus.jsonl").write_bytes(encoder.encode_lines(documents))
    (folder / "questions.jsonl").write_bytes(encoder.encode_lines(questions))


def vocabulary_of(world: World) -> str:
    """The vocabulary file of a world: the words of all wordings, then all names (`router.protocol.vocabulary`)."""
    wordings = itertools.chain.from_iterable(
        (relation.noun, *relation.ask, *(text for text, _ in relation.compare)) for relation in RELATIONS
    )
    words = {word.strip("?,.").format(x="", a="", b="") for wording in wordings for word in wording.split()}
    names = {name for entity in world.entities for name in (entity.name, entity.alias) if name}
    return "\n".join([*sorted(filter(None, words)), *OCCUPATIONS, "", *sorted(names), ""])


def over(config: Config, world: Path) -> Config:
    """The same models over the world whose files are in the folder `world`; its index, its runs and the versions that
    are made of these are kept there.
    """
    retrieval = msgspec.structs.replace(
        config.retrieval, documents=(str(world / "corpus.jsonl"),), index=str(world / "index"), address=None
    )
    search = msgspec.structs.replace(
        config.search, vocabulary=config.search.vocabulary and str(world / "vocabulary.txt")
    )
    server = msgspec.structs.replace(config.server, store=f"sqlite:///{world}/runs.db")
    versions = msgspec.structs.replace(config.versions, folder=str(world / "versions"))
    return msgspec.structs.replace(config, retrieval=retrieval, search=search, server=server, versions=versions)


def write_config(config: msgspec.Struct, file: Path) -> None:
    """Write it as TOML: a gateway's, or another kind."""
    write_atomically(file, tomlkit.dumps(_without_none(msgspec.to_builtins(config))).encode())


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
