"""Metrics of a gateway that answers."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from rolegate.client import GatewayError

from router.access import Tenant
from router.models import Usage
from router.store import Database, SQLAccounts
from serving.config.config import TelemetryConfig
from serving.telemetry.metrics import Metrics
from tests.router.store.stored import call, run
from tests.serving.telemetry.watched_gateway import QUESTION, watched_gateway

Samples = dict[str, dict[frozenset[tuple[str, str]], float]]


async def scraped(url: str) -> Samples:
    """Return the values by name and labels."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.status == 200
        families = text_string_to_metric_families(await response.text())
    samples: Samples = {}
    for family in families:
        for sample in family.samples:
            samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return samples


def of(samples: Samples, name: str, **labels: str) -> float:
    """Return one value."""
    return samples[name][frozenset(labels.items())]


async def test_all_work_is_counted(tmp_path: Path) -> None:
    """Requests, runs, calls, tokens, searches and reports are counted."""
    async with watched_gateway(tmp_path, TelemetryConfig(metrics="127.0.0.1:0")) as gateway:
        answers = [await gateway.client.ask(QUESTION) for _ in range(2)]
        with pytest.raises(GatewayError):
            await gateway.client.ask(" ")
        samples = await scraped(gateway.listens("metrics"))
    rpc = "/rolegate.v1.AnswerService/Answer"
    assert of(samples, "rolegate_requests_total", rpc=rpc, code="OK") == 2
    assert of(samples, "rolegate_requests_total", rpc=rpc, code="INVALID_ARGUMENT") == 1
    assert of(samples, "rolegate_requests_in_flight", rpc=rpc) == 0
    assert of(samples, "rolegate_request_seconds_count", rpc=rpc) == 3
    run = {"kind": "answer", "status": "finished", "outcome": "answered", "tenant": "default"}
    assert of(samples, "rolegate_runs_total", **run) == 2
    assert not [name for name in samples if name.endswith("_created")]
    assert of(samples, "rolegate_runs_in_flight") == 0
    calls = {"model": "delegator", "purpose": "first", "outcome": "completed"}
    assert of(samples, "rolegate_calls_total", role="delegation", **calls) == 6
    assert of(samples, "rolegate_call_seconds_count", role="execution") == 8
    booked: Mapping[str, int] = {
        "prompt": sum(usage.prompt_tokens for answer in answers for usage in answer.usage),
        "completion": sum(usage.completion_tokens for answer in answers for usage in answer.usage),
    }
    for kind, tokens in booked.items():
        roles = ("delegation", "execution", "answer")
        counted = [
            of(samples, "rolegate_tokens_total", role=role, kind=kind, tenant="default")
            for role in roles
        ]
        assert sum(counted) == tokens > 0
    assert (
        of(samples, "rolegate_searches_total", error="")
        == of(samples, "rolegate_search_seconds_count")
        == 4
    )
    assert of(samples, "rolegate_sub_queries_total", report="worked") == 4
    assert of(samples, "rolegate_breaker_state", deployment=gateway.models, state="closed") == 1


def test_unknown_usage_is_not_counted() -> None:
    """Unknown usage is not counted as zero tokens."""
    metrics = Metrics()
    calls = [
        call("run-1", usage=Usage(10, 2), nano_usd=None),
        call("run-1", 1, role="answer", usage=None, nano_usd=None),
    ]
    metrics.run_ended(run("run-1", calls=calls), private=False)
    value = metrics.registry.get_sample_value
    labels = {"role": "execution", "kind": "prompt", "tenant": "default"}
    assert value("rolegate_tokens_total", labels) == 10
    for role, kind in (("execution", "cached"), ("execution", "reasoning"), ("answer", "prompt")):
        assert value("rolegate_tokens_total", labels | {"role": role, "kind": kind}) is None
    assert value("rolegate_wasted_tokens_total", {"role": "answer"}) is None
    assert value("rolegate_cost_usd_total", {"role": "execution", "tenant": "default"}) is None
    assert value("rolegate_uncounted_calls_total", {"role": "answer"}) == 1


def test_failed_runs_are_counted_by_the_reasons_of_the_errors() -> None:
    """An error that the gateway does not know is a bug in it; a cancelled run is no failure."""
    metrics = Metrics()
    for status, error in (
        ("failed", "UpstreamRefused: http://10.0.0.7 says no"),
        ("failed", "KeyError: 'a name'"),
        ("interrupted", ""),
        ("cancelled", ""),
        ("finished", ""),
    ):
        ended = replace(run("run-1"), status=status, error=error)
        metrics.run_ended(ended, private=False)
    (family,) = [
        family for family in metrics.registry.collect() if family.name == "rolegate_run_failures"
    ]
    counted = {sample.labels["reason"]: sample.value for sample in family.samples}
    assert counted == {"UPSTREAM_REFUSED": 1, "INTERNAL": 1, "RUN_INTERRUPTED": 1}


def test_many_tenants_share_one_label() -> None:
    """Fifty tenants have their own label; the runs of all others are those of `other`."""
    metrics = Metrics()
    for number in (*range(60), 1):
        metrics.run_ended(replace(run("run-1"), tenant=f"tenant-{number}"), private=False)
    (family,) = [family for family in metrics.registry.collect() if family.name == "rolegate_runs"]
    counted = {sample.labels["tenant"]: sample.value for sample in family.samples}
    assert (len(counted), counted["other"], counted["tenant-1"]) == (51, 10, 2)


async def test_what_is_left_of_quotas_is_measured(tmp_path: Path) -> None:
    """Each limit of a tenant has its share, as far as runs are stored."""
    url = f"sqlite:///{tmp_path}/runs.db"
    database = await Database.open(url)
    tenant = Tenant("default", tokens_per_month=10**9, nano_usd_per_day=5, requests_per_day=4)
    await SQLAccounts(database).set_tenant(tenant)
    await database.close()

    async with watched_gateway(tmp_path, TelemetryConfig(metrics="127.0.0.1:0")) as gateway:
        samples: Samples = {}
        while "rolegate_quota_left_ratio" not in samples:
            samples = await scraped(gateway.listens("metrics"))
    shares = samples["rolegate_quota_left_ratio"].items()
    left = {dict(labels)["quota"]: share for labels, share in shares}
    assert left == {"requests_per_day": 1, "tokens_per_month": 1, "usd_per_day": 1}


async def test_the_event_loop_s_lag_is_measured(tmp_path: Path) -> None:
    """This holds while there are no requests, too."""
    async with watched_gateway(tmp_path, TelemetryConfig(metrics="127.0.0.1:0")) as gateway:
        samples = await scraped(gateway.listens("metrics"))
        while not of(samples, "rolegate_event_loop_lag_seconds_count"):
            samples = await scraped(gateway.listens("metrics"))
    assert "rolegate_process_resident_memory_bytes" in samples


async def test_metrics_are_served_under_known_names_only(tmp_path: Path) -> None:
    """Configured host names are accepted; the rebound name of a web page is refused."""
    async with (
        watched_gateway(
            tmp_path, TelemetryConfig(metrics="127.0.0.1:0"), hosts=("gateway.example",)
        ) as gateway,
        aiohttp.ClientSession() as session,
    ):
        for host, status in (("gateway.example:1", 200), ("evil.example", 421)):
            async with session.get(gateway.listens("metrics"), headers={"Host": host}) as response:
                assert response.status == status


async def test_http_requests_are_counted_by_path_and_status(tmp_path: Path) -> None:
    telemetry = TelemetryConfig(metrics="127.0.0.1:0")
    async with (
        watched_gateway(tmp_path, telemetry, "127.0.0.1:0") as gateway,
        aiohttp.ClientSession() as session,
    ):
        door = gateway.listens("OpenAI")
        metrics = gateway.listens("metrics")
        for path in ("models", "models/gpt", "nowhere"):
            async with session.get(f"{door}/{path}"):
                pass
        samples = await scraped(metrics)
    counted = samples["rolegate_requests_total"]
    assert counted == {
        frozenset({("rpc", "/v1/models"), ("code", "200")}): 1,
        frozenset({("rpc", "/v1/models/{name}"), ("code", "404")}): 1,
        frozenset({("rpc", ""), ("code", "404")}): 1,
    }


def test_nothing_is_loaded_unless_configured() -> None:
    """A gateway without telemetry imports neither library."""
    program = "import json, sys, router, serving.composition; print(json.dumps(list(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout
    assert not {"prometheus_client", "opentelemetry"} & set(json.loads(loaded))
