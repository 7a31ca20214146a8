import os
import re
from pathlib import Path

import pytest

from router.edge.listening import is_address
from router.errors import BadConfig
from serving.config.file import load_config, preset
from tests.router.edge.certificates import Authority

PRESETS = sorted(file.stem for file in preset("mini").parent.glob("*.toml"))
ROLE = 'base_url = "http://127.0.0.1:1/v1"\nmodel = "m"\nprompt = "prompt.txt"\n'
GOOD = f"""\
[roles.delegation]
{ROLE}
[roles.execution]
{ROLE}
[roles.answer]
{ROLE}
[retrieval]
address = "127.0.0.1:2"
"""


def written(folder: Path, text: str) -> Path:
    """A config file with a prompt beside it."""
    (folder / "prompt.txt").write_text("Do it.\n")
    path = folder / "my.toml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> str:
    """What is said about a file, without the file's name, which always comes first."""
    path = written(folder, text)
    with pytest.raises(BadConfig) as caught:
        load_config(path)
    file, separator, problem = str(caught.value).partition(": ")
    assert (file, separator) == (str(path), ": ")
    return problem


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/v1?api_key=sesame", "http://127.0.0.1:1/v1#sesame"])
def test_an_address_with_a_query(tmp_path: Path, address: str) -> None:
    """It cannot be asked, and what is said does not repeat it: there may be a key in it."""
    problem = refused(tmp_path, GOOD.replace("http://127.0.0.1:1/v1", address, 1))
    assert problem.startswith("roles.delegation.base_url: an address with a query or a fragment cannot be asked")
    assert "sesame" not in problem


def test_a_path_that_no_file_can_have(tmp_path: Path) -> None:
    """It is told as what it is."""
    text = GOOD.replace('address = "127.0.0.1:2"', 'index = "i"\ndocuments = ["a\\u0000b"]')
    assert refused(tmp_path, text) == r"a path in it holds the character \u0000, which no file's name can."


@pytest.mark.parametrize("name", PRESETS)
def test_every_shipped_preset_loads(name: str) -> None:
    """Its prompts, models, corpus and scope are where it says."""
    config = load_config(preset(name))

    assert all(Path(role.prompt).is_file() for role in (config.roles.delegation, config.roles.execution))


def test_an_unknown_preset_is_told_the_known_ones() -> None:
    with pytest.raises(BadConfig, match=r"^preset 'maxi': unknown; there are: hosted, local, mini, one-gpu, paper\.$"):
        preset("maxi")


def test_a_minimal_file_is_enough(tmp_path: Path) -> None:
    """Three roles and where passages come from; all else has a default."""
    config = load_config(written(tmp_path, GOOD))

    assert config.roles.answer.base_url == "http://127.0.0.1:1/v1"
    assert config.server.address == "127.0.0.1:50551"
    assert (config.search.max_rounds, config.search.max_turns, config.search.top_k) == (4, 3, 3)


def test_paths_stand_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command was started."""
    monkeypatch.chdir("/")
    text = GOOD.replace('address = "127.0.0.1:2"', 'index = "data/index"') + '[server]\nstore = "sqlite:///runs.db"\n'
    config = load_config(written(tmp_path, text))

    assert config.roles.delegation.prompt == f"{tmp_path}/prompt.txt"
    assert config.retrieval.index == f"{tmp_path}/data/index"
    assert config.server.store == f"sqlite:///{tmp_path}/runs.db"


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In prompts, indexes, models and the store."""
    home = tmp_path / "home"
    (home / "model").mkdir(parents=True)
    (home / "model" / "config.json").write_text("{}")
    (home / "asks.txt").write_text("Ask.")
    monkeypatch.setenv("HOME", str(home))
    text = GOOD.replace("prompt.txt", "~/asks.txt", 1).replace('address = "127.0.0.1:2"', 'index = "~/index"')
    text += '[server]\nstore = "sqlite:///~/runs.db"\n[engines.one]\npath = "~/model"\n'
    config = load_config(written(tmp_path, text))

    assert config.roles.delegation.prompt == f"{home}/asks.txt"
    assert config.retrieval.index == f"{home}/index"
    assert config.engines["one"].path == f"{home}/model"
    assert config.server.store == f"sqlite:///{home}/runs.db"


def test_an_absolute_path_and_another_database_stay_as_they_are(tmp_path: Path) -> None:
    store = "postgresql+asyncpg://me@db/runs"
    text = GOOD.replace('address = "127.0.0.1:2"', 'index = "/data/index"') + f'[server]\nstore = "{store}"\n'
    config = load_config(written(tmp_path, text))

    assert config.retrieval.index == "/data/index"
    assert config.server.store == store


def test_an_older_sqlite_url_names_the_same_file(tmp_path: Path) -> None:
    """Its driver is left out."""
    text = GOOD + '[server]\nstore = "sqlite+aiosqlite:///runs.db"\n'
    assert load_config(written(tmp_path, text)).server.store == f"sqlite:///{tmp_path}/runs.db"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("runs.db", "is no database URL"),
        ("sqlite://", "must be sqlite:///FILE"),
        ("mysql://me:open-sesame@db/runs", "must be sqlite:///FILE"),
        ("postgresql://me:open-sesame@db:port/runs", "is no database URL"),
        ("postgresql:me:open-sesame@db", "is no database URL"),
    ],
)
def test_a_store_that_is_none(tmp_path: Path, url: str, said: str) -> None:
    """What is said about it does not repeat it: there may be a password in it."""
    problem = refused(tmp_path, GOOD + f'[server]\nstore = "{url}"\n')
    assert problem.startswith(f"server.store: {said}")
    assert "sesame" not in problem


def test_certificates_stand_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command was started; they belong together."""
    authority = Authority(tmp_path)
    authority.issue("server")
    monkeypatch.chdir("/")
    names = 'certificate = "server.pem"\nkey = "server.key"\nclient_ca = "authority.pem"\n'
    tls = load_config(written(tmp_path, f"{GOOD}[server.tls]\n{names}")).server.tls
    assert tls is not None
    assert (tls.certificate, tls.key) == (f"{tmp_path}/server.pem", f"{tmp_path}/server.key")
    assert tls.client_ca == f"{tmp_path}/authority.pem"


def test_a_name_that_vllm_knows_is_no_path(tmp_path: Path) -> None:
    """`Qwen/Qwen3-1.7B` is left to vLLM."""
    config = load_config(written(tmp_path, GOOD + '[engines.one]\npath = "Qwen/Qwen3-1.7B"\n'))

    assert config.engines["one"].path == "Qwen/Qwen3-1.7B"


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("[roles.delegation]", "sever = 1\n[roles.delegation]", "sever: unknown field; did you mean server?"),
        ("[retrieval]", "[retrival]\n[retrieval]", "retrival: unknown field; did you mean retrieval?"),
        (
            "[retrieval]",
            "[server]\nadress = 'a:1'\n[retrieval]",
            "server.adress: unknown field; did you mean server.address?",
        ),
        ("[retrieval]", "[roles.x]\n[retrieval]", "roles.x: unknown field; there are: delegation, execution, answer"),
        (
            "[roles.execution]",
            "[roles.execution]\nmax_turns = 3",
            "roles.execution.max_turns: unknown field; did you mean search.max_turns?",
        ),
        (
            "[roles.execution]",
            "[roles.execution]\ntop_k = 3",
            "roles.execution.top_k: unknown field; did you mean search.top_k?",
        ),
        (
            "[retrieval]",
            "[roles.judge]\n[retrieval]",
            "roles.judge: unknown field; did you mean distillation.judge?",
        ),
        (
            "[retrieval]",
            "[retrieval.embedder]\nkynd = 'minilm'\n[retrieval]",
            "retrieval.embedder.kynd: unknown field; did you mean retrieval.embedder.kind?",
        ),
        (
            "[retrieval]",
            "[engines.a]\npath='m'\n[engines.b]\npth='m'\n[retrieval]",
            "engines.b.pth: unknown field; did you mean engines.b.path?",
        ),
    ],
)
def test_an_unknown_key_is_named_at_any_depth(tmp_path: Path, good: str, bad: str, said: str) -> None:
    """Nothing that was written is silently ignored."""
    assert refused(tmp_path, GOOD.replace(good, bad)) == said


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ('model = "m"', "", "roles.delegation.model: missing"),
        ('prompt = "prompt.txt"', "", "roles.delegation.prompt: missing"),
        ("[retrieval]", "[engines.b]\n[retrieval]", "engines.b.path: missing"),
    ],
)
def test_a_missing_key_is_named(tmp_path: Path, good: str, bad: str, said: str) -> None:
    assert refused(tmp_path, GOOD.replace(good, bad, 1)) == said


@pytest.mark.parametrize("section", ["roles", "retrieval", "execution"])
def test_a_missing_table_is_named(tmp_path: Path, section: str) -> None:
    kept = [part for part in re.split(r"^(?=\[)", GOOD, flags=re.MULTILINE) if section not in part.split("]")[0]]

    assert refused(tmp_path, "".join(kept)) == ("roles.execution" if section == "execution" else section) + ": missing"


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ('model = "m"', "model = 3", "roles.delegation.model: Expected `str`, got `int`"),
        ("[retrieval]", "[search]\nmax_rounds = 'four'\n[retrieval]", "search.max_rounds: Expected `int`, got `str`"),
        ("[retrieval]", "[search]\nrequire_evidence = 1\n[retrieval]", "search.require_evidence: Expected `bool`"),
        ("[retrieval]", "[retrieval.embedder]\nkind = 'bge'\n[retrieval]", "retrieval.embedder.kind: Invalid enum"),
        ("[roles.delegation]", "engines = 1\n[roles.delegation]", "engines: Expected `object`, got `int`"),
        (
            "[retrieval]",
            "[engines.b]\npath='m'\narguments=[1]\n[retrieval]",
            "engines.b.arguments[0]: Expected `str`, got `int`",
        ),
    ],
)
def test_a_wrong_type_is_named_with_its_key(tmp_path: Path, good: str, bad: str, said: str) -> None:
    assert refused(tmp_path, GOOD.replace(good, bad, 1)).startswith(said)


@pytest.mark.parametrize(
    "text",
    ["[roles", "max_rounds: 4\n", "{}", '{"roles": {}}', GOOD + "[retrieval]\n", "a = 1\na = 2\n"],
    ids=["unclosed", "YAML", "braces", "JSON", "a table twice", "a key twice"],
)
def test_what_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, text).startswith("not TOML: ")


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(GOOD.encode() + b"# caf\xe9\n")

    with pytest.raises(BadConfig, match=r"latin\.toml: not TOML: "):
        load_config(path)


def test_an_empty_file_lacks_everything(tmp_path: Path) -> None:
    assert refused(tmp_path, "") == "roles: missing"


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """As is a folder in its place, and one that may not be read."""
    with pytest.raises(BadConfig, match=r"absent\.toml: cannot be read \(No such file or directory\); name a TOML"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(BadConfig, match=r"cannot be read \(Is a directory\)"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("prompt.txt", "absent.txt", "roles.delegation.prompt: there is no file {folder}/absent.txt."),
        (
            "[retrieval]",
            "[engines.b]\npath = './absent'\n[retrieval]",
            "engines.b.path: {folder}/absent holds no config.json; it must be a model's folder.",
        ),
        (
            'base_url = "http://127.0.0.1:1/v1"',
            'engine = "b"',
            "roles.delegation.engine: no table engines.b; add it, or name a base_url instead.",
        ),
        (
            "[roles.delegation]",
            "[engines.b]\npath = 'm'\n[roles.delegation]\nengine = 'b'",
            "roles.delegation: both engine and base_url are given; keep one.",
        ),
        (
            'address = "127.0.0.1:2"',
            'address = "127.0.0.1:2"\nindex = "i"',
            "retrieval: give either address (a retrieval server) or index (a folder), not both and not neither.",
        ),
        (
            'address = "127.0.0.1:2"',
            "",
            "retrieval: give either address (a retrieval server) or index (a folder), not both and not neither.",
        ),
        (
            'address = "127.0.0.1:2"',
            'index = "i"\ndocuments = ["absent"]',
            "retrieval.documents: there is no file or folder {folder}/absent.",
        ),
        (
            "[retrieval]",
            "[search]\nscope = 'absent.txt'\n[retrieval]",
            "search.scope: there is no file {folder}/absent.txt.",
        ),
        ("[retrieval]", "[search]\ntop_k = 0\n[retrieval]", "search.top_k: must be at least 1."),
        (
            "[retrieval]",
            "[search]\nmax_report_chars = 99\n[retrieval]",
            "search.max_report_chars: must be at least 100.",
        ),
        ("[retrieval]", "[reuse]\nkeep_s = -1\n[retrieval]", "reuse.keep_s: must be 0 to 86400 seconds."),
        ("[retrieval]", "[reuse]\nmost = -1\n[retrieval]", "reuse.most: must be 0 or more; 0 keeps none."),
        ("[retrieval]", "[retrieval]\ntimeout_s = 0", "retrieval.timeout_s: must be more than 0."),
        *(
            (
                "[retrieval]",
                f"[engines.b]\npath = 'm'\n{key} = {seconds}\n[retrieval]",
                f"engines.b.{key}: must be 1 to 86400 seconds.",
            )
            for key in ("ready_within_s", "health_timeout_s")
            for seconds in ("0", "inf", "nan")
        ),
        (
            "[retrieval]",
            "[retrieval.batching]\nwait_ms = -1\n[retrieval]",
            "retrieval.batching.wait_ms: must be 0 to 1000.",
        ),
        (
            "[retrieval]",
            "[retrieval.batching]\nmost = 0\n[retrieval]",
            "retrieval.batching.most: must be at least 1, which searches for each query alone.",
        ),
        (
            "[retrieval]",
            "[retrieval.batching]\ncache = -1\n[retrieval]",
            "retrieval.batching.cache: must be 0 or more; 0 keeps none.",
        ),
        ("[retrieval]", "[admission]\nmax_runs = 0\n[retrieval]", "admission.max_runs: must be at least 1."),
        (
            "[retrieval]",
            "[admission]\nmax_runs_per_tenant = 0\n[retrieval]",
            "admission.max_runs_per_tenant: must be at least 1.",
        ),
        (
            "[retrieval]",
            "[admission]\nqueue = -1\n[retrieval]",
            "admission.queue: must be 0 or more; 0 turns away at once.",
        ),
        ("[retrieval]", "[admission]\nqueue_s = 3601\n[retrieval]", "admission.queue_s: must be 0 to 3600 seconds."),
        (
            'model = "m"',
            "model = ' '",
            "roles.delegation.model: is empty; write the name under which the endpoint serves it.",
        ),
        (
            "[retrieval]",
            '[server]\naddress = "127.0.0.1:5"\nhttp = "127.0.0.1:5"\n[retrieval]',
            "server.http: the same address as server.address, which is gRPC's; take another port.",
        ),
        (
            "[retrieval]",
            '[server]\nhttp_hosts = ["gateway.example", "https://gateway.example"]\n[retrieval]',
            "server.http_hosts: 'https://gateway.example' is no name of a host, such as gateway.example.",
        ),
        (
            "[retrieval]",
            "[server]\nkeep_days = 0\n[retrieval]",
            "server.keep_days: must be more than 0; leave it out to keep everything.",
        ),
        ("[retrieval]", "[server.tls]\ncertificate = 'a.pem'\n[retrieval]", "server.tls.key: missing"),
        (
            "[retrieval]",
            "[server.tls]\ncertificate = 'a.pem'\nkey = 'a.key'\n[retrieval]",
            "server.tls.certificate: {folder}/a.pem cannot be read",
        ),
        (
            "[retrieval]",
            "[search]\nmax_turns = 1\n[retrieval]",
            "search.max_turns: must be at least 2, one to search and one to report.",
        ),
        ('model = "m"', 'model = "m"\nmax_tokens = 0', "roles.delegation.max_tokens: must be at least 1."),
        ('model = "m"', 'model = "m"\nattempts = -1', "roles.delegation.attempts: must be at least 1."),
        ('model = "m"', 'model = "m"\nmax_in_flight = 0', "roles.delegation.max_in_flight: must be at least 1."),
        ('model = "m"', 'model = "m"\ncall_timeout_s = 0', "roles.delegation.call_timeout_s: must be more than 0."),
        (
            'model = "m"',
            'model = "m"\nhedge_percentile = 100',
            "roles.delegation.hedge_percentile: must be 50 or more and less than 100, such as 95.",
        ),
        (
            'model = "m"',
            'model = "m"\nfallbacks = ["delegation"]',
            "roles.delegation.fallbacks: names the role itself.",
        ),
        (
            "[roles.execution]",
            '[roles.execution]\nreplicas = ["http://127.0.0.1:1/v1/"]',
            "roles.execution.replicas: names an address twice.",
        ),
        (
            "[retrieval]",
            "[distillation.teacher]\nmodel = 'm'\nprompt = 'prompt.txt'\nreplicas = ['http://b/v1']\n[retrieval]",
            "distillation.teacher.replicas: needs engine or base_url; LiteLLM's models have no replicas here.",
        ),
        (
            "[retrieval]",
            "[distillation.teacher]\nmodel = 'm'\nprompt = 'prompt.txt'\nfallbacks = ['answer']\n[retrieval]",
            "distillation.teacher.fallbacks: only the roles of the search have any.",
        ),
        (
            "[roles.execution]",
            '[roles.execution]\nfallbacks = ["judge"]',
            "roles.execution.fallbacks[0]: Invalid enum value 'judge'",
        ),
        (
            "[roles.execution]",
            '[roles.execution]\nreplicas = ["ftp://u:open-sesame@b:1"]',
            "roles.execution.replicas: 'ftp://b:1' is not an address such as http://127.0.0.1:8000/v1.",
        ),
        (
            "http://127.0.0.1:1/v1",
            "ftp://me:open-sesame@127.0.0.1:1/v1",
            "roles.delegation.base_url: 'ftp://127.0.0.1:1/v1' is not an address",
        ),
        ("prompt.txt", "~nobody-of-this-name/p.txt", "roles.delegation.prompt: there is no file"),
        (
            "[retrieval]",
            "[engines.b]\npath = 'm'\nadapter_rank = 24\n[retrieval]",
            "engines.b.adapter_rank: vLLM takes 1, 8, 16, 32, 64, 128, 256, 320 or 512 only; take the next one above",
        ),
        (
            "[retrieval]",
            "[versions]\nstart = 'executor-000001'\n[retrieval]",
            "versions.start: {folder}/executor-000001 holds no manifest.json; name the folder of a published version.",
        ),
        (
            "[retrieval]",
            "[versions.gate]\nmargin = 0\n[retrieval]",
            "versions.gate.margin: must be more than 0 and less than 1.",
        ),
        (
            "[retrieval]",
            "[versions.gate]\nerror = 1\n[retrieval]",
            "versions.gate.error: must be more than 0 and less than 1.",
        ),
        (
            "[retrieval]",
            "[versions.gate]\ncanary_share = 1.5\n[retrieval]",
            "versions.gate.canary_share: must be more than 0 and at most 1; 1 is all runs.",
        ),
        (
            "[retrieval]",
            "[versions.gate]\nmost_trials = 0\n[retrieval]",
            "versions.gate.most_trials: must be 1 or more; a decision takes a hundred or more.",
        ),
        (
            "[retrieval]",
            "[versions.gate]\nmost_tokens = 0\n[retrieval]",
            "versions.gate.most_tokens: must be more than 0; 1 allows no more than the active version spends.",
        ),
        ("[retrieval]", "[versions.gate]\nmargin = nan\n[retrieval]", "versions.gate.margin: must be more than 0"),
        (
            "[retrieval]",
            "[distillation.teacher]\nmodel = 'm'\nprompt = 'prompt.txt'\nengine = 'b'\n[retrieval]",
            "distillation.teacher.engine: no table engines.b; add it, or name a base_url instead.",
        ),
        (
            "[retrieval]",
            "[distillation.judge]\nmodel = 'm'\nprompt = 'absent.txt'\n[retrieval]",
            "distillation.judge.prompt: there is no file {folder}/absent.txt.",
        ),
    ],
)
def test_what_cannot_work_is_told_with_its_key_and_what_to_do(tmp_path: Path, good: str, bad: str, said: str) -> None:
    assert refused(tmp_path, GOOD.replace(good, bad, 1)).startswith(said.format(folder=tmp_path))


@pytest.mark.parametrize(
    ("executor", "said"),
    [
        ("", "versions.start: a provider loads no adapters; give roles.execution an engine, or leave it out."),
        ('engine = "b"\n', "versions.start: needs engines.b.adapter_rank, the rank of its adapter or more."),
    ],
)
def test_a_first_version_that_nothing_could_load(tmp_path: Path, executor: str, said: str) -> None:
    """It is told before anything is started."""
    (tmp_path / "executor-000001").mkdir()
    (tmp_path / "executor-000001" / "manifest.json").write_text("{}")
    role = f'[roles.execution]\nmodel = "m"\nprompt = "prompt.txt"\n{executor}'
    text = GOOD.replace(f"[roles.execution]\n{ROLE}", role)
    text += "[versions]\nstart = 'executor-000001'\n[engines.b]\npath = 'm'\n"
    assert refused(tmp_path, text) == said


def test_versions_lie_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command was started; the first one may come with the package."""
    monkeypatch.chdir("/")
    (tmp_path / "v" / "executor-000001").mkdir(parents=True)
    (tmp_path / "v" / "executor-000001" / "manifest.json").write_text("{}")
    text = GOOD + "[versions]\nfolder = 'v'\nstart = 'v/executor-000001'\n"
    versions = load_config(written(tmp_path, text)).versions
    assert (versions.folder, versions.start) == (f"{tmp_path}/v", f"{tmp_path}/v/executor-000001")


def test_a_config_is_read_without_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is not exported is missed when serving begins, not when the file is checked."""
    monkeypatch.delenv("A_KEY_OF_MINE", raising=False)
    config = load_config(written(tmp_path, GOOD.replace('model = "m"', 'model = "m"\napi_key_env = "A_KEY_OF_MINE"')))

    assert config.roles.answer.api_key_env not in os.environ


@pytest.mark.parametrize(
    ("address", "good"),
    [("127.0.0.1:0", True), ("[::1]:65535", True), ("a:65536", False), ("a:٣", False), (":80", False), ("a", False)],
)
def test_an_address_has_a_port_that_there_is(address: str, good: bool) -> None:
    """65536 would be taken for 0."""
    assert is_address(address) == good


@pytest.mark.parametrize(
    ("good", "bad", "key"),
    [
        ("[roles.execution]", '[roles.execution]\napi_key_env = "sk-secret"', "roles.execution"),
        (
            "[retrieval]",
            '[retrieval.embedder]\nkind = "endpoint"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\ndimension = 8\n'
            'api_key_env = "sk-secret"\n[retrieval]',
            "retrieval.embedder",
        ),
    ],
)
def test_a_key_in_the_place_of_its_variable_is_not_repeated(tmp_path: Path, good: str, bad: str, key: str) -> None:
    """Who writes it there is told where it belongs, and nobody else sees it."""
    said = refused(tmp_path, GOOD.replace(good, bad, 1))
    assert said.startswith(f"{key}.api_key_env: is no name of an environment variable")
    assert "sk-secret" not in said
