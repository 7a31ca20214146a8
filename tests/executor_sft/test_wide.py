"""Tables about a world: gold values follow the world's facts, disturbances are additions, and
worlds without tables are unchanged.
"""

import csv
import hashlib
import itertools
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from string import ascii_uppercase

import pytest

from executor_sft.__main__ import main
from executor_sft.minimodel.stream import Role, conversations
from executor_sft.miniworld.dialogues import RolePrompts
from executor_sft.miniworld.export import export, export_tables
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.talks import WORDS
from executor_sft.miniworld.wide import FORMS, ROWS, EntitySet, Knobs, WideWorld
from executor_sft.miniworld.world import Entity, Side, World, side_of
from router.protocol import Vocabulary
from serving.config.file import load_config

WIDESEARCH = Path(__file__).parents[3] / "shared" / "data" / "widesearch" / "tasks.jsonl"
UNDISTURBED = Knobs(listed=1, stale=0, twice=0, conflict=0, unstated=0)


@pytest.fixture(scope="module")
def wide() -> WideWorld:
    return WideWorld(21, "test", Knobs())


@cache
def worlds(**shares: float) -> list[WideWorld]:
    """Three worlds with no disturbances but those named."""
    knobs = {name: getattr(UNDISTURBED, name) for name in Knobs.__struct_fields__} | shares
    return [WideWorld(seed, "test", Knobs(**knobs)) for seed in (1, 2, 3)]


def titled(wide: WideWorld, title: str) -> int:
    return sum(page.title.startswith(title) for page in wide.library.passages)


def names_of(entity_set: EntitySet) -> list[str]:
    """Return all names in the registers of a set, with repetitions."""
    return [name for register in entity_set.registers for name in entity_set.stated[register].names]


def value(entity: Entity, relation: str) -> str:
    fact = entity.values[relation]
    return fact if isinstance(fact, str) else fact.mention


@pytest.mark.parametrize(
    ("seed", "side", "digest"),
    [
        (7, "test", "f1fb15846083316ee34c84564d3c20b91a701b2d9d73488ad4c37adf7d96559f"),
        (12, "test", "b3679c181c6d8a418e86fa11f4c8ed4dfb9c43c48bf71444ac04bf31e269eb20"),
        (1, "train", "897e4ab9943d59651ef6ec0b66ba9168ee974eeb71165a556b3f17d7d222b4e4"),
    ],
)
def test_a_world_without_tables_is_unchanged(
    seed: int, side: Side, digest: str, tmp_path: Path
) -> None:
    """Corpus, 40 questions and vocabulary are byte for byte those from before tables, apart from
    the words of follow-up questions.
    """
    export(World(seed, side), tmp_path, 40)
    vocabulary = (tmp_path / "vocabulary.txt").read_text("utf-8").splitlines(keepends=True)
    new_words = set(WORDS) - {"and", "what"}
    known = "".join(line for line in vocabulary if line.strip() not in new_words)
    files = b"".join((tmp_path / name).read_bytes() for name in ("corpus.jsonl", "questions.jsonl"))
    assert hashlib.sha256(files + known.encode()).hexdigest() == digest


@pytest.mark.parametrize(
    ("role", "digest"),
    [
        ("backbone", "4b771b8e196f0f8ebdd4d8fb1ef5a40b36cef510f806bfdced1c9eb6b2054a21"),
        ("executor", "9fa1fd28d7061fb370c84fd5a2440a89ec634f009f27ba7219d6e1b07d00af49"),
        ("student", "722f5875bf191cfdb9f051271838dd79b4d4fa8b3e0bc8e3cc1b50a0a1beac3b"),
        ("generalist", "d367ab38159250ec4a5a6d027ac55da001d49bc17255ca5e00afbde5222c75e4"),
    ],
)
def test_training_without_tables_is_unchanged(role: Role, digest: str, system: RolePrompts) -> None:
    """The first 300 conversations are equal, word for word; so the shipped models can be trained
    again.
    """
    taught = hashlib.sha256()
    for dialogue in itertools.islice(conversations(role, system, 1000), 300):
        for turn in dialogue:
            taught.update(f"{turn.kind}\t{turn.text}\n".encode())
    assert taught.hexdigest() == digest


def test_the_same_seed_makes_the_same_tables(wide: WideWorld) -> None:
    """Pages and questions are equal; another seed makes other tables."""
    same = WideWorld(21, "test", Knobs())
    other_world = WideWorld(22, "test", Knobs())
    assert same.library.passages == wide.library.passages
    assert [(task.id, task.query) for task in same.tasks] == [
        (task.id, task.query) for task in wide.tasks
    ]
    assert {task.question for task in other_world.tasks}.isdisjoint(
        task.question for task in wide.tasks
    )


def test_names_are_of_one_side(wide: WideWorld) -> None:
    """No name of a test world's tables is ever trained on."""
    train = WideWorld(21, "train", Knobs())
    for wide_world, side in ((wide, "test"), (train, "train")):
        rows = [
            row for task in wide_world.tasks for row in task.rows if row.kind in ("city", "person")
        ]
        assert {side_of(word) for row in rows for word in row.name.split()} == {side}
    assert {row.mention for task in train.tasks for row in task.rows}.isdisjoint(
        row.mention for task in wide.tasks for row in task.rows
    )


def test_tables_are_of_three_sizes_and_all_kinds(wide: WideWorld) -> None:
    """There are 20 of each: about 8, 25 and 55 rows, the large tables of two sets; every kind is
    among the rows.
    """
    for size, about in (("small", 8), ("medium", 25), ("large", 55)):
        rows = [len(task.rows) for task in wide.tasks if task.size == size]
        assert len(rows) == 20
        assert all(number in ROWS[size] for number in rows)  # type: ignore[index]
        assert abs(sum(rows) / len(rows) / about - 1) < 0.3
    assert {len(task.sets) for task in wide.tasks if task.size == "large"} == {2}
    assert {task.columns[0] for task in wide.tasks} == set(FORMS)
    assert all(len({row.mention for row in task.rows}) == len(task.rows) for task in wide.tasks)


def test_a_set_has_all_its_members(wide: WideWorld) -> None:
    """They are exactly the entities whose facts say so: with one owner, and before the year, if the
    set has one.
    """
    for entity_set in wide.sets:
        link, *dated = entity_set.rests_on
        limit = int(entity_set.noun.rpartition(" before ")[2]) if dated else 9999
        owner = value(entity_set.members[0], link)
        assert owner in entity_set.noun
        meant = [
            entity.mention
            for entity in wide.world.entities
            if entity.kind == entity_set.kind and value(entity, link) == owner
            if not dated or int(entity.values.get(dated[0], "9999")) < limit  # type: ignore[arg-type]
        ]
        assert [member.mention for member in entity_set.members] == meant


def test_gold_follows_the_world_s_facts(wide: WideWorld) -> None:
    """This holds for each cell; a cell is blank exactly if no page states it."""
    unstated = {(entity.mention, relation.name) for entity, relation in wide.unstated}
    blanks = 0
    for task in wide.tasks:
        for row in task.rows:
            for relation in task.relations:
                gold = wide.gold(row, relation)
                blanks += not gold
                assert gold == (
                    "" if (row.mention, relation.name) in unstated else value(row, relation.name)
                )
    assert blanks
    for entity, relation in wide.unstated:
        assert relation.name not in entity.values
        key = (entity.mention, relation.name)
        assert not {key} & {*wide.library.states, *wide.library.points}


def test_reach_is_the_place_of_a_cell(wide: WideWorld) -> None:
    """A key is in a register whose text names it, or on its own page; a value is on its own page,
    found by a second search, or nowhere.
    """
    kinds: Counter[str] = Counter()
    for task in wide.tasks:
        listed = {name for entity_set in task.sets for name in names_of(entity_set)}
        for row, (key, *cells) in zip(task.rows, wide.reach(task), strict=True):
            kinds.update([key, *cells])
            assert key == ("register" if row.mention in listed else "own_page")
            pages = [wide.library.by_id[page].text for page in wide.library.of_entity[row.mention]]
            for relation, cell in zip(task.relations, cells, strict=True):
                gold = wide.gold(row, relation)
                assert (cell == "unstated") == (not gold)
                if cell == "own_page":
                    assert any(gold in text for text in pages)
    assert set(kinds) == {"register", "own_page", "two_searches", "unstated"}


def test_registers_have_few_names_and_their_subject(wide: WideWorld) -> None:
    """They have six at most, four to six as a rule, and none twice, in the words that discoveries
    ask for.
    """
    sizes: Counter[int] = Counter()
    for entity_set in wide.sets:
        for position, register in enumerate(entity_set.registers):
            page = wide.library.by_id[register]
            stated = entity_set.stated[register]
            assert page.title == f"Register {ascii_uppercase[position]} of the {entity_set.noun}"
            assert stated.sentence in page.text
            assert all(name in page.text for name in stated.names)
            assert len(set(stated.names)) == len(stated.names)
            sizes[len(stated.names)] += 1
            question = entity_set.discoveries(0, len(entity_set.registers))[position]
            assert entity_set.named_in(question, [*entity_set.stated]) == [stated]
        *_, beyond, _ = entity_set.discoveries(0, len(entity_set.registers) + 1)
        assert entity_set.named_in(beyond, [*entity_set.stated]) == []
    assert max(sizes) == 6
    assert sum(sizes[size] for size in (4, 5, 6)) > 0.9 * sizes.total()


def test_an_undisturbed_world_adds_registers_only() -> None:
    """All facts and pages of the world without tables are there, and registers that name each
    member once and no other entity.
    """
    of_hubs = [
        (World(seed, "test", hubs=5), wide) for seed, wide in zip((1, 2, 3), worlds(), strict=True)
    ]
    for plain, wide in (*of_hubs, (World(7, "test"), WideWorld.undisturbed(7, "test"))):
        pages = Library(plain).passages
        assert [fact.value for fact in wide.world.facts.values()] == [
            fact.value for fact in plain.facts.values()
        ]
        assert wide.library.passages[: len(pages)] == pages
        assert all(
            page.title.startswith("Register ") for page in wide.library.passages[len(pages) :]
        )
        assert (
            sorted(wide.registers, key=lambda page: page.id) == wide.library.passages[len(pages) :]
        )
        for entity_set in wide.sets:
            assert Counter(names_of(entity_set)) == Counter(
                member.mention for member in entity_set.members
            )


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_the_knob_listed_leaves_out_its_share(share: float) -> None:
    """Only members whose own page states their membership are left out."""
    omitted = members = 0
    for wide in worlds(listed=1 - share):
        for entity_set in wide.sets:
            out = {member.mention for member in entity_set.members} - set(names_of(entity_set))
            own_pages = {
                name
                for page, stated in entity_set.stated.items()
                if page not in entity_set.registers
                for name in stated.names
            }
            assert out <= own_pages
            omitted = omitted + len(out)
            members = members + len(entity_set.members)
    assert abs(omitted / members - share) < 0.03


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_stale_registers_name_an_entity_that_does_not_belong(share: float) -> None:
    """It is of the same kind, and not in the gold."""
    wrong = registers = 0
    for wide in worlds(stale=share):
        kinds = {entity.mention: entity.kind for entity in wide.world.entities}
        for entity_set in wide.sets:
            strange = set(names_of(entity_set)) - {member.mention for member in entity_set.members}
            assert {kinds[name] for name in strange} <= {entity_set.kind}
            wrong = wrong + len(strange)
            registers = registers + len(entity_set.registers)
    assert abs(wrong / registers - share) < 0.15 * share + 0.03


def test_the_knob_twice_repeats_names() -> None:
    """They are in a second register, if there is one, and on pages of notes."""
    repeated = members = notes = cells = 0
    for wide in worlds(twice=0.3):
        for entity_set in wide.sets:
            if len(entity_set.registers) > 2:
                repeated += sum(number == 2 for number in Counter(names_of(entity_set)).values())
                members += len(entity_set.members)
            assert max(Counter(names_of(entity_set)).values()) <= 2
        notes = notes + titled(wide, "Notes on ")
        cells = cells + plain_cells(wide)
    assert abs(repeated / members - 0.3) < 0.03
    assert abs(notes / cells - 0.3) < 0.05


def plain_cells(wide: WideWorld) -> int:
    """Return the cells that their row's own page states, of all sets, each once."""
    rows = {row.mention: row for entity_set in wide.sets for row in entity_set.members}
    columns = {
        kind: {
            relation.name
            for task in wide.tasks
            if task.columns[0] == kind
            for relation in task.relations
        }
        for kind in FORMS
    }
    facts = [
        wide.world.facts.get((name, column))
        for name, row in rows.items()
        for column in columns[row.kind]
    ]
    return sum(fact is not None and fact.detour is None for fact in facts)


def test_an_old_account_differs_and_names_the_right_page() -> None:
    """Its share of cells is as configured; that page states the gold, and the old account does
    not.
    """
    outdated = cells = 0
    for wide in worlds(conflict=0.2):
        for page in wide.library.passages:
            if page.title.startswith("Old account of "):
                outdated += 1
                name = page.title.removeprefix("Old account of ")
                assert f"The corrected account is on the page {name}." in page.text
                facts = [fact for (mention, _), fact in wide.world.facts.items() if mention == name]
                assert any(
                    f"{fact.value}" not in page.text and fact.detour is None for fact in facts
                )
        cells += plain_cells(wide)
    assert abs(outdated / cells - 0.2) < 0.04


def test_the_knob_unstated_removes_its_share() -> None:
    """Only facts that no set or other page depends on are left out, and no more than allowed."""
    removed = free = 0
    for seed, wide in zip((1, 2, 3), worlds(unstated=0.3), strict=True):
        facts = World(seed, "test", hubs=5).facts
        needed = {(fact.via, fact.relation.name) for fact in facts.values()}
        for key, fact in facts.items():
            form = FORMS.get(fact.subject.kind)
            family = fact.relation.name in ("father", "mother", "spouse")
            free += (
                form is not None
                and fact.relation.name != form.link
                and not family
                and key not in needed
            )
        removed += len(wide.unstated)
        assert all(
            (entity.mention, relation.name) not in needed for entity, relation in wide.unstated
        )
    assert abs(removed / free - 0.3) < 0.03


def test_files_have_widesearch_s_form(wide: WideWorld, tmp_path: Path) -> None:
    """They have the fields of its tasks, rules by its names, gold with a byte-order mark, and the
    columns in the last lines.
    """
    export_tables(wide, tmp_path)
    tasks = [
        json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text("utf-8").splitlines()
    ]
    assert [task["instance_id"] for task in tasks] == [task.id for task in wide.tasks]
    for written, task in zip(tasks, wide.tasks, strict=True):
        rules = json.loads(written["evaluation"])
        assert rules["unique_columns"] == task.columns[:1]
        assert rules["required"] == list(rules["eval_pipeline"]) == task.columns
        raw = (tmp_path / "gold" / f"{task.id}.csv").read_bytes()
        assert raw.startswith(b"\xef\xbb\xbf")
        header, *rows = csv.reader(raw.decode("utf-8-sig").splitlines())
        assert header == task.columns
        assert rows == [
            [row.mention, *(wide.gold(row, relation) for relation in task.relations)]
            for row in task.rows
        ]
        assert f"columns:\n{', '.join(header)}\n" in written["query"]
        assert written["group"].endswith(f"-{header[0]}")
    export_tables(wide, tmp_path, plain=True)
    lines = (tmp_path / "tasks.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["query"] for line in lines] == [task.question for task in wide.tasks]
    if not WIDESEARCH.is_file():
        pytest.skip("there is no WideSearch in a folder `shared` next to the checkout")
    theirs = [json.loads(line) for line in WIDESEARCH.read_text("utf-8").splitlines()]
    assert {frozenset(task) - {"group"} for task in tasks} == {frozenset(task) for task in theirs}
    known = [json.loads(task["evaluation"])["eval_pipeline"] for task in theirs]
    shapes = {
        (*rule["preprocess"], *rule["metric"], type(rule.get("criterion")))
        for relation in known
        for rule in relation.values()
    }
    for task in tasks:
        for rule in json.loads(task["evaluation"])["eval_pipeline"].values():
            assert (*rule["preprocess"], *rule["metric"], type(rule.get("criterion"))) in shapes


def test_the_command_writes_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The corpus has the registers, and the scope has every query."""
    knobs = ["--tables", "3", "--listed", "1", "--unstated", "0"]
    assert main(["mini-world", "--wide", "--seed", "12", "--out", str(tmp_path), *knobs]) == 0
    assert "a wide world of seed 12 with 9 tables" in capsys.readouterr().out
    scope = Vocabulary.parse((tmp_path / "vocabulary.txt").read_text("utf-8"))
    tasks = [
        json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text("utf-8").splitlines()
    ]
    assert not [task["query"] for task in tasks if scope.outside(task["query"])]
    titles = [
        json.loads(line)["title"]
        for line in (tmp_path / "corpus.jsonl").read_text("utf-8").splitlines()
    ]
    assert any(re.match("Register [A-Z] of the ", title) for title in titles)
    assert load_config(tmp_path / "rolegate.toml").retrieval.lexical
