import os
from pathlib import Path

import pytest
from rolegate.client.connection import is_address

from router.edge.listening import TLS
from router.errors import BadConfig
from serving.config.file import load_config, preset
from serving.config.secrets import missing
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
    """Write a config file with a prompt next to it."""
    (folder / "prompt.txt").write_text("Do it.\n")
    path = folder / "my.toml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> str:
    """Return the error of a file, without the file's name, with which it begins."""
    path = written(folder, text)
    with pytest.raises(BadConfig) as caught:
        load_config(path)
    file, separator, problem = str(caught.value).partition(": ")
    assert (file, separator) == (str(path), ": ")
    return problem


def in_role(keys: str) -> str:
    """Return the config with more keys in the delegation role."""
    return GOOD.replace("[roles.delegation]", f"[roles.delegation]\n{keys}", 1)


def with_tables(tables: str) -> str:
    """Return the config with more tables."""
    return GOOD.replace("[retrieval]", f"{tables}\n[retrieval]", 1)


def with_index(keys: str) -> str:
    """Return the config with an index in this process."""
    return GOOD.replace('address = "127.0.0.1:2"', f'index = "i"\n{keys}')


@pytest.mark.parametrize("name", PRESETS)
def test_every_shipped_preset_loads(name: str) -> None:
    """Its prompts, models, corpus and scope are at the configured places."""
    config = load_config(preset(name))
    assert all(Path(role.prompt).is_file() for role in config.roles.by_name.values())


def test_an_unknown_preset_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        BadConfig,
        match=r"^preset 'maxi': unknown; the presets are: hosted, local, mini, one-gpu, paper\.$",
    ):
        preset("maxi")


def test_paths_are_relative_to_the_config_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for every key, from any working directory. A name that vLLM knows is no path."""
    Authority(tmp_path).issue("server")
    (tmp_path / "v" / "executor-000001").mkdir(parents=True)
    (tmp_path / "v" / "executor-000001" / "manifest.json").write_text("{}")
    monkeypatch.chdir("/")
    text = with_index("") + (
        '[server]\nstore = "sqlite:///runs.db"\n[server.tls]\ncertificate = '
        '"server.pem"\nkey = "server.key"\n'
        'client_ca = "authority.pem"\n[versions]\nfolder = "v"\nstart = "v/executor-000001"\n'
        '[engines.one]\npath = "Qwen/Qwen3-1.7B"\n'
    )
    config = load_config(written(tmp_path, text))
    assert config.roles.delegation.prompt == f"{tmp_path}/prompt.txt"
    assert config.retrieval.index == f"{tmp_path}/i"
    assert config.server.store == f"sqlite:///{tmp_path}/runs.db"
    assert config.server.tls == TLS(
        certificate=f"{tmp_path}/server.pem",
        key=f"{tmp_path}/server.key",
        client_ca=f"{tmp_path}/authority.pem",
    )
    assert (config.versions.folder, config.versions.start) == (
        f"{tmp_path}/v",
        f"{tmp_path}/v/executor-000001",
    )
    assert config.engines["one"].path == "Qwen/Qwen3-1.7B"


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is resolved in prompts, models and the store."""
    home = tmp_path / "home"
    (home / "model").mkdir(parents=True)
    (home / "model" / "config.json").write_text("{}")
    (home / "asks.txt").write_text("Ask.")
    monkeypatch.setenv("HOME", str(home))
    text = GOOD.replace("prompt.txt", "~/asks.txt", 1)
    text += '[server]\nstore = "sqlite:///~/runs.db"\n[engines.one]\npath = "~/model"\n'
    config = load_config(written(tmp_path, text))
    assert config.roles.delegation.prompt == f"{home}/asks.txt"
    assert config.engines["one"].path == f"{home}/model"
    assert config.server.store == f"sqlite:///{home}/runs.db"


def test_an_absolute_path_and_another_database_are_unchanged(tmp_path: Path) -> None:
    store = "postgresql+asyncpg://me@db/runs"
    config = load_config(
        written(tmp_path, GOOD + f'[versions]\nfolder = "/data"\n[server]\nstore = "{store}"\n')
    )
    assert (config.versions.folder, config.server.store) == ("/data", store)


def test_an_impossible_path_is_refused(tmp_path: Path) -> None:
    text = with_index('documents = ["a\\u0000b"]')
    assert (
        refused(tmp_path, text)
        == r"contains a path with the character \u0000; remove this character."
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (with_tables(f'[server]\nstore = "{url}"'), "server.store: must be sqlite:///FILE")
        for url in (
            "runs.db",
            "sqlite://",
            "mysql://me:sesame@db/runs",
            "postgresql://me:sesame@db:port/runs",
        )
    ]
    + [
        (
            GOOD.replace("http://127.0.0.1:1/v1", url, 1),
            f"roles.delegation.base_url: {problem}",
        )
        for url, problem in (
            (
                "http://a/v1?api_key=sesame",
                "contains a ? or #; leave out everything after the path.",
            ),
            ("http://a/v1#sesame", "contains a ? or #; leave out everything after the path."),
            ("ftp://me:sesame@a/v1", "must be http:// or https:// and a host, like http://127"),
            ("http://", "must be http:// or https:// and a host, like http://127"),
        )
    ]
    + [
        (
            in_role('replicas = ["ftp://u:sesame@b:1"]'),
            "roles.delegation.replicas: must be http://",
        ),
        (
            in_role('api_key_env = "sk-sesame"'),
            "roles.delegation.api_key_env: is not the name of an environment variable",
        ),
        (
            with_tables('[tools.web]\nenv = ["sk-sesame"]'),
            "tools.web.env: is not the name of an environment variable",
        ),
        (
            with_tables('[tools.web]\nheaders = {Key = "sk-sesame"}'),
            "tools.web.headers.Key: is not the name of an environment",
        ),
        (
            with_index(
                '[retrieval.embedder]\nbase_url = "http://a/v1"\nmodel = "m"\ndimension = 8\n'
            )
            + 'api_key_env = "sk-sesame"',
            "retrieval.embedder.api_key_env: is not the name of an environment variable",
        ),
    ],
)
def test_a_secret_is_not_repeated(tmp_path: Path, text: str, key: str) -> None:
    """A password or key in a wrong place is reported by its place alone."""
    problem = refused(tmp_path, text)
    assert problem.startswith(key)
    assert "sesame" not in problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sever = 1\n" + GOOD, "sever: unknown key; did you mean server?"),
        (with_tables("[retrival]"), "retrival: unknown key; did you mean retrieval?"),
        (
            with_tables("[server]\nadress = 'a:1'"),
            "server.adress: unknown key; did you mean server.address?",
        ),
        (
            with_tables("[roles.x]"),
            "roles.x: unknown key; use delegation, execution, answer",
        ),
        (
            in_role("max_turns = 3"),
            "roles.delegation.max_turns: unknown key; did you mean search.max_turns?",
        ),
        (in_role("top_k = 3"), "roles.delegation.top_k: unknown key; did you mean search.top_k?"),
        (
            with_tables("[roles.judge]"),
            "roles.judge: unknown key; did you mean distillation.judge?",
        ),
        (
            with_tables("[engines.a]\npath='m'\n[engines.b]\npth='m'"),
            "engines.b.pth: unknown key; did you mean engines.b.path?",
        ),
        (GOOD.replace('model = "m"', "", 1), "roles.delegation.model: missing"),
        (with_tables("[engines.b]"), "engines.b.path: missing"),
        (
            with_tables("[tools.a]\nurl = 'http://a/mcp'\n[tools.b]\nalow = ['x']"),
            "tools.b.alow: unknown key; did you",
        ),
        (
            with_tables("[tools.b]\nheaders = {Key = 1}"),
            "tools.b.headers[...]: must be text, got a whole number",
        ),
        ("", "roles: missing"),
        (GOOD.partition("[retrieval]")[0], "retrieval: missing"),
        (in_role("seed = 'a'"), "roles.delegation.seed: must be a whole number, got text"),
        (
            with_tables("[search]\nrequire_evidence = 1"),
            "search.require_evidence: must be true or false",
        ),
        ("engines = 1\n" + GOOD, "engines: must be a table, got a whole number"),
        (
            with_tables("[engines.b]\npath='m'\narguments=[1]"),
            "engines.b.arguments[0]: must be text, got a whole number",
        ),
        (
            in_role('fallbacks = ["judge"]'),
            (
                "roles.delegation.fallbacks[0]: value 'judge' is not possible; use "
                "answer, delegation, execution"
            ),
        ),
        (
            with_tables("[engines.b]\npath = 'm'\nadapter_rank = 24"),
            (
                "engines.b.adapter_rank: value 24 is not possible; use 1, 8, 16, 32, 64, "
                "128, 256, 320, 512"
            ),
        ),
    ],
)
def test_a_wrong_key_or_type_is_named_at_any_depth(tmp_path: Path, text: str, message: str) -> None:
    """No setting is ignored silently."""
    assert refused(tmp_path, text).startswith(message)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            "flat",
            "'flat' is not supported; write Flat, or an index factory string of FAISS such as",
        ),
        ("HNSW32", "'HNSW32' is not supported"),
        ("IVF0,SQ8", "'IVF0,SQ8' is not supported"),
        ("IVF4096,PQ50", "IVF4096,PQ50 does not fit the embedder"),
    ],
)
def test_a_factory_that_cannot_be_used_is_refused(
    tmp_path: Path, factory: str, message: str
) -> None:
    """It fails when the config is read, and not when the index is built."""
    problem = refused(tmp_path, with_index(f'vectors = "{factory}"'))
    assert problem.startswith(f"retrieval.vectors: {message}")


def test_two_indexes_cannot_share_a_partition(tmp_path: Path) -> None:
    """Each build would delete the passages of the other index."""
    milvus = 'milvus = {address = "http://127.0.0.1:1", partition = "main"}'
    text = with_index(f'{milvus}\n[indexes.other]\nindex = "other"\n{milvus}')
    problem = refused(tmp_path, text)
    assert (
        problem == "retrieval.milvus: another index has the same partition; name another partition."
    )


@pytest.mark.parametrize(
    "text",
    [
        "[roles",
        "max_rounds: 4\n",
        "{}",
        '{"roles": {}}',
        GOOD + "[retrieval]\n",
        "a = 1\na = 2\n",
        "a = " + "[" * 10_000,
    ],
    ids=["unclosed", "YAML", "braces", "JSON", "a table twice", "a key twice", "nested deeply"],
)
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, text).startswith("is not valid TOML (")


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    """The file is not UTF-8, is missing, or is a folder."""
    path = tmp_path / "latin.toml"
    path.write_bytes(GOOD.encode() + b"# caf\xe9\n")
    for file, message in (
        (path, r"is not valid TOML \("),
        (tmp_path / "absent.toml", r"cannot be read \(No such file or directory\); name a TOML"),
        (tmp_path, r"cannot be read \(Is a directory\)"),
    ):
        with pytest.raises(BadConfig, match=f"{file.name}: {message}"):
            load_config(file)


@pytest.mark.parametrize(
    ("table", "key", "values", "message"),
    [
        ("search", "top_k", "0", "at least 1"),
        ("search", "top_k", "101", "at most 100"),
        ("search", "max_turns", "1", "at least 2"),
        ("server", "timeout_s", "0 nan", "more than 0"),
        ("server", "grace_s", "86401 inf", "at most 86400"),
        ("server", "keep_days", "0", "more than 0"),
        ("report_cache", "keep_s", "-1", "at least 0"),
        ("admission", "max_runs_per_tenant", "0", "at least 1"),
        ("admission", "queue_s", "3601", "at most 3600"),
        ("versions.gate", "margin", "0 nan", "more than 0"),
        ("versions.gate", "margin", "1", "less than 1"),
        ("versions.gate", "canary_share", "1.5", "at most 1"),
        ("tools.web", "max_in_flight", "0", "at least 1"),
        ("tools.web", "timeout_s", "0 nan", "more than 0"),
        ("engines.b", "ready_within_s", "0 nan", "at least 1"),
        ("engines.b", "health_timeout_s", "inf", "at most 86400"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_limit(
    tmp_path: Path, table: str, key: str, values: str, message: str
) -> None:
    """A NaN is neither too low nor too high, and is refused, too."""
    path = "path = 'm'\n" if table.startswith("engines") else ""
    for value in values.split():
        text = with_tables(f"[{table}]\n{path}{key} = {value}")
        assert refused(tmp_path, text) == f"{table}.{key}: must be {message}, got {value}"


TEACHER = "[distillation.teacher]\nmodel = 'm'\nprompt = 'prompt.txt'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD.replace("prompt.txt", "absent.txt", 1),
            "roles.delegation.prompt: there is no file {folder}/absent.txt; fix the path.",
        ),
        (
            with_tables('[roles.table_execution]\nprompt = "absent.txt"'),
            "roles.table_execution.prompt: there is no file {folder}/absent.txt; fix the path.",
        ),
        (
            with_tables("[table]\nmax_rows = 20\nmax_tasks = 10"),
            (
                "table.max_rows: must be at most table.max_tasks (10), because each row takes at "
                "least one task, got 20; change one of the two."
            ),
        ),
        (
            GOOD.replace("prompt.txt", "~nobody-of-this-name/p.txt", 1),
            "roles.delegation.prompt: there is no file",
        ),
        (
            with_tables("[engines.b]\npath = './absent'"),
            "engines.b.path: {folder}/absent contains no config.json; name the folder of a model.",
        ),
        (
            GOOD.replace('base_url = "http://127.0.0.1:1/v1"', 'engine = "b"', 1),
            "roles.delegation.engine: there is no table [engines.b]; add it, or set base_url.",
        ),
        (
            in_role("engine = 'b'") + "[engines.b]\npath = 'm'\n",
            "roles.delegation: both engine and base_url are given; keep one.",
        ),
        (
            GOOD.replace('address = "127.0.0.1:2"', 'address = "127.0.0.1:2"\nindex = "i"'),
            "retrieval: set exactly one of address (a retrieval server) and index (a folder).",
        ),
        (
            GOOD.replace('address = "127.0.0.1:2"', ""),
            "retrieval: set exactly one of address (a retrieval server) and index (a folder).",
        ),
        (
            with_index('documents = ["absent"]'),
            "retrieval.documents: there is no file or folder {folder}/absent; fix the path.",
        ),
        (
            with_index("[retrieval.embedder]\nmodel = 'm'"),
            "retrieval.embedder.model: applies only to an embedder with engine or base_url",
        ),
        (
            with_index("[retrieval.embedder]\nonnx = 'm'\ndimension = 3"),
            "retrieval.embedder.dimension: applies only to an embedder with engine or base_url",
        ),
        (
            with_index("[retrieval.embedder]\nbase_url = 'http://a/v1'\nmodel = 'm'"),
            "retrieval.embedder.dimension: missing; embedders with engine or base_url need it.",
        ),
        (
            with_tables("[search]\nvocabulary = 'absent.txt'"),
            "search.vocabulary: there is no file {folder}/absent.txt; fix the path.",
        ),
        (
            GOOD.replace('model = "m"', "model = ' '", 1),
            "roles.delegation.model: is empty; write the name",
        ),
        (
            with_tables('[server]\naddress = "127.0.0.1:5"\nhttp = "127.0.0.1:5"'),
            "server.http: is the same as server.address, which serves gRPC; choose another port.",
        ),
        (
            with_tables('[server]\naddress = "a"'),
            "server.address: 'a' is not host:port (port 0 to 65535), such as 127.0.0.1:50551.",
        ),
        (
            with_tables('[server]\nhttp_hosts = ["gateway.example", "https://gateway.example"]'),
            (
                "server.http_hosts: 'https://gateway.example' is not a host name; write "
                "only the name, such as gateway.example."
            ),
        ),
        (with_tables("[server.tls]\ncertificate = 'a.pem'"), "server.tls.key: missing"),
        (
            with_tables("[server.tls]\ncertificate = 'a.pem'\nkey = 'a.key'"),
            "server.tls.certificate: {folder}/a.pem cannot be read",
        ),
        (
            in_role('fallbacks = ["delegation"]'),
            "roles.delegation.fallbacks: contains the role itself; remove it from the list.",
        ),
        (
            in_role('replicas = ["http://127.0.0.1:1/v1/"]'),
            "roles.delegation.replicas: contains a URL twice, or the URL of base_url; remove one.",
        ),
        (
            in_role("context_tokens = 9\nmax_tokens = 9"),
            "roles.delegation.context_tokens: must be more than max_to",
        ),
        (
            in_role("extra_body = {n = 2}"),
            "roles.delegation.extra_body.n: must not be set, because the gateway",
        ),
        (
            with_tables(f"{TEACHER}replicas = ['http://b/v1']"),
            "distillation.teacher.replicas: needs engine or base",
        ),
        (
            with_tables(f"{TEACHER}fallbacks = ['answer']"),
            "distillation.teacher.fallbacks: this role can have no fallbacks",
        ),
        (
            with_tables(f"{TEACHER}thinking = true"),
            "distillation.teacher.thinking: works with engine or base_url only",
        ),
        (
            with_tables("[prices.m]\nprompt = -1\ncompletion = 1"),
            "prices.'m'.prompt: must be between 0 and 100,000",
        ),
        (
            with_tables("[versions]\nstart = 'executor-000001'"),
            (
                "versions.start: {folder}/executor-000001 contains no manifest.json; name the "
                "folder of a published version."
            ),
        ),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_key_and_remedy(
    tmp_path: Path, text: str, message: str
) -> None:
    assert refused(tmp_path, text).startswith(message.format(folder=tmp_path))


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        (
            "",
            (
                "versions.start: the model of roles.execution is called through LiteLLM, which "
                "loads no adapters; set roles.execution.engine, or remove this key."
            ),
        ),
        (
            'engine = "b"\n',
            (
                "versions.start: needs engines.b.adapter_rank; set it to at least the rank of the "
                "version's adapter."
            ),
        ),
    ],
)
def test_a_first_version_that_cannot_be_loaded_is_refused(
    tmp_path: Path, executor: str, message: str
) -> None:
    """The error comes before anything is started."""
    (tmp_path / "executor-000001").mkdir()
    (tmp_path / "executor-000001" / "manifest.json").write_text("{}")
    role = f'[roles.execution]\nmodel = "m"\nprompt = "prompt.txt"\n{executor}'
    text = GOOD.replace(f"[roles.execution]\n{ROLE}", role)
    text += "[versions]\nstart = 'executor-000001'\n[engines.b]\npath = 'm'\n"
    assert refused(tmp_path, text) == message


def test_a_config_is_read_without_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing environment variable is reported when serving begins, not when the file is read."""
    monkeypatch.delenv("A_KEY_OF_MINE", raising=False)
    config = load_config(
        written(tmp_path, GOOD.replace('model = "m"', 'model = "m"\napi_key_env = "A_KEY_OF_MINE"'))
    )

    assert config.roles.answer.api_key_env not in os.environ


@pytest.mark.parametrize(
    ("address", "good"),
    [
        ("127.0.0.1:0", True),
        ("[::1]:65535", True),
        ("a:65536", False),
        ("a:٣", False),
        (":80", False),
        ("a", False),
    ],
)
def test_an_address_needs_a_valid_port(address: str, good: bool) -> None:
    """Port 65536 would be taken for 0."""
    assert is_address(address) == good


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            "",
            "tools.web: set exactly one of command (a program with its arguments) and url.",
        ),
        ("command = ['a']\nurl = 'http://a/mcp'", "tools.web: set exactly one of command"),
        (
            "url = 'http://a/mcp'\nenv = ['A']",
            "tools.web.env: needs command; for a server with url,",
        ),
        (
            "command = ['a']\nheaders = {Key = 'A'}",
            "tools.web.headers: needs url; for a server with command,",
        ),
        ("url = 'a/mcp'", "tools.web.url: must be http://"),
    ],
)
def test_a_tool_server_is_a_program_or_an_address(tmp_path: Path, keys: str, message: str) -> None:
    """Keys of the other kind are refused."""
    assert refused(tmp_path, with_tables(f"[tools.web]\n{keys}")).startswith(message)


def test_variables_of_tools_must_be_set_and_fit_for_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = (
        "[tools.a]\ncommand = ['a']\nenv = ['OF_A']\n[tools.b]\nurl = 'http://b/mcp'\n"
        "headers = {Key = 'OF_B'}"
    )
    config = load_config(written(tmp_path, with_tables(tables)))
    assert missing(config) == [
        "tools.a.env: the environment variable OF_A is not set; export it.",
        "tools.b.headers: the environment variable OF_B is not set; export it.",
    ]
    for name in ("OF_A", "OF_B"):
        monkeypatch.setenv(name, "two\nlines")
    (problem,) = missing(config)
    assert problem.startswith(
        "tools.b.headers: the environment variable OF_B contains characters that no key has"
    )
