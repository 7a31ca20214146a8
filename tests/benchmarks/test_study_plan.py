"""Sweeps as files: their configs, and errors with file and key."""

from pathlib import Path

import pytest

from benchmarks.study.cells import cells_of, engine_groups
from benchmarks.study.plan import questions_of, read_plan
from benchmarks.study.sweep import begin, begin_cell
from router.errors import BadConfig, BadCorpus

ROLE = 'model = "m"\nprompt = "prompt.txt"\nbase_url = "http://127.0.0.1:9/v1"\n'
MODELS = """[models.big]
settings = { model = "B", base_url = "http://127.0.0.1:8/v1", temperature = 0.5, max_tokens = 7 }
[models.small]
"""
PAIRS = '[[pairs]]\nbackbone = ["big", "small"]\nexecutor = ["small"]\n'
BIG = PAIRS.replace('["small"]', '["big"]')
HEAD = 'config = "config.toml"\n'


def write(folder: Path, pairs: str = PAIRS, models: str = MODELS, head: str = HEAD) -> Path:
    """Write a sweep with its config."""
    (folder / "prompt.txt").write_text("You work.")
    tables = "".join(f"[roles.{name}]\n{ROLE}" for name in ("delegation", "execution", "answer"))
    (folder / "config.toml").write_text(f'{tables}[retrieval]\naddress = "127.0.0.1:9"\n')
    (folder / "sweep.toml").write_text(f'questions = ["q.jsonl"]\n{head}{models}{pairs}')
    return folder / "sweep.toml"


def test_models_take_missing_keys_from_their_role(tmp_path: Path) -> None:
    """A model with another name has its own endpoint."""
    alone = '[[pairs]]\nbackbone = ["big"]\ntopology = "single_agent"\n'
    extra = f'{alone}prompt = "prompt.txt"\n[[pairs]]\nbackbone = ["small"]\n'
    cells = cells_of(read_plan(write(tmp_path, PAIRS + extra + 'executor = ["big"]\n')))
    assert [cell.name for cell in cells] == [
        "big + small",
        "small + small",
        "single_agent: big",
        "small + big",
    ]
    big = cells[0].roles["delegation"]
    small = cells[1].roles["delegation"]
    assert (big.model, big.base_url, big.temperature) == ("B", "http://127.0.0.1:8/v1", 0.5)
    assert (small.model, small.base_url) == ("m", "http://127.0.0.1:9/v1")
    assert big.prompt == str(tmp_path / "prompt.txt")
    assert cells[3].roles["execution"].max_tokens == 7
    (lone,) = cells[2].roles.values()
    assert (lone.model, lone.prompt) == ("B", str(tmp_path / "prompt.txt"))
    (shipped,) = cells_of(read_plan(write(tmp_path, alone)))
    assert Path(shipped.roles["delegation"].prompt).name == "single_agent.txt"
    assert cells[0].roles["answer"] == cells[1].roles["answer"]


@pytest.mark.parametrize(
    ("pairs", "models", "head", "why"),
    [
        (PAIRS.replace("small", "tiny"), MODELS, HEAD, r"pairs\[0\].backbone: unknown model"),
        ('[[pairs]]\nbackbone = ["big"]\n', MODELS, HEAD, "topology 'factorized' needs executors"),
        (f'{PAIRS}topology = "single_agent"\n', MODELS, HEAD, "has no executors"),
        (f'{PAIRS}topology = "alone"\n', MODELS, HEAD, r"pairs\[0\].topology: cannot be 'alone'"),
        ("", MODELS, f"{HEAD}pairs = []\n", "pairs: must have a length of at least 1"),
        (PAIRS, MODELS, f"{HEAD}rollout = 3\n", "unknown field `rollout`"),
        (PAIRS, MODELS, f"{HEAD}rollouts = 0\n", "rollouts: must be at least 1"),
        (
            PAIRS,
            MODELS.replace("small", "' '"),
            HEAD,
            "key of models: must match the regular expression",
        ),
        (PAIRS, MODELS, "", "lacks the required field `config`"),
        (PAIRS, MODELS, "rollouts =\n", "at line 2"),
        (BIG, MODELS.replace("max_tokens", "most"), HEAD, "models.big.settings: .*`most`"),
        (BIG, MODELS.replace("7", "0"), HEAD, "max_tokens"),
    ],
)
def test_an_invalid_sweep_is_refused(
    tmp_path: Path, pairs: str, models: str, head: str, why: str
) -> None:
    """The error comes before anything is started."""
    with pytest.raises(BadConfig, match=why):
        cells_of(read_plan(write(tmp_path, pairs, models, head)))


def test_each_question_is_used_once(tmp_path: Path) -> None:
    """The first of equal questions is; others with the same id get a number; the limit is per data
    set.
    """
    plan = read_plan(write(tmp_path, head=f"{HEAD}limit = 2\n"))
    (tmp_path / "q.jsonl").write_text(
        '{"id": "1", "question": "Who?", "answer": "me", "dataset": "a"}\n'
        '{"id": "1", "question": "who", "answer": "me", "dataset": "a"}\n'
        '{"id": "1", "question": "Where?", "answer": "here", "dataset": "a"}\n'
        '{"id": "2", "question": "When?", "answer": "now", "dataset": "a"}\n'
        '{"id": "3", "question": "Who?", "answer": "you", "dataset": "b"}\n'
    )
    chosen = [(question.dataset, question.id) for question in questions_of(plan)]
    assert chosen == [("a", "1"), ("a", "1#2"), ("b", "3")]
    (tmp_path / "q.jsonl").write_text('{"id": "1", "question": "Who?"}\n')
    with pytest.raises(BadCorpus, match=r"q\.jsonl:1: no answer"):
        questions_of(plan)


def test_cells_share_engines_in_order(tmp_path: Path) -> None:
    """Each cell joins the first group with room for its engines; the order is kept."""
    engines = "".join(f'[engines.e{name}]\npath = "owner/{name}"\n' for name in "abc")
    models = "".join(
        f'[models.{name}]\nsettings = {{ model = "{name}", engine = "e{name}" }}\n'
        for name in "abc"
    )
    pairs = (
        '[[pairs]]\nbackbone = ["a", "b", "c"]\nexecutor = ["a"]\n[[pairs]]\nbackbone = '
        '["a"]\nexecutor = ["b"]\n'
    )
    file = write(tmp_path, pairs, models)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text() + engines)
    cells = cells_of(read_plan(file))
    names = [[cell.name for cell in group] for group in engine_groups(cells, 2)]
    assert names == [["a + a", "b + a", "a + b"], ["c + a"]]
    assert [len(group) for group in engine_groups(cells, 1)] == [1, 1, 1, 1]


def test_another_model_with_the_same_name_is_another_sweep(tmp_path: Path) -> None:
    """A cell that has begun keeps its engine's model."""
    models = '[models.own]\nsettings = { model = "own", engine = "own" }\n'
    file = write(tmp_path, '[[pairs]]\nbackbone = ["own"]\nexecutor = ["own"]\n', models)
    (tmp_path / "q.jsonl").write_text('{"id": "1", "question": "Who?", "answer": "me"}\n')
    config = (tmp_path / "config.toml").read_text()

    def start(path: str) -> None:
        (tmp_path / "config.toml").write_text(f'{config}[engines.own]\npath = "{path}"\n')
        plan = read_plan(file)
        (cell,) = cells_of(plan)
        begin(tmp_path / "out", plan, [cell])
        begin_cell(tmp_path / "out", cell)

    start("owner/one")
    start("owner/one")
    with pytest.raises(BadConfig, match=r"begun with settings\.engines\.own"):
        start("owner/other")


def test_an_adapter_is_served_alongside_the_demo_s_model(tmp_path: Path) -> None:
    """The plan chooses the adapter; the config's first version is in no cell."""
    models = '[models.plain]\n[models.distilled]\nadapter = "shipped:models/executor-000001"\n'
    models += '[models.teacher]\nsettings = { model = "mini-teacher", engine = "teacher" }\n'
    pairs = '[[pairs]]\nbackbone = ["plain"]\nexecutor = ["plain", "distilled", "teacher"]\n'
    mini = 'config = "shipped:presets/mini.toml"\n'
    cells = cells_of(read_plan(write(tmp_path, pairs, models, mini)))
    assert [cell.version for cell in cells] == [None, "executor-000001", None]
    assert [sorted(cell.engines) for cell in cells] == [["backbone", "executor"]] * 2 + [
        ["backbone", "teacher"]
    ]
    assert all(cell.config.versions.start is None for cell in cells)
    with pytest.raises(BadConfig, match="an adapter cannot delegate"):
        read_plan(
            write(
                tmp_path,
                pairs.replace('"plain"]\nexec', '"distilled"]\nexec'),
                models,
                mini,
            )
        )
