"""The dashboard and the alerts in `deploy/` use names and labels that a gateway exports."""

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from rolegate.client import AsyncClient, GatewayError

from benchmarks.gateway import canned_config, played
from router.access import Tenant
from router.store import Database, SQLAccounts
from serving.composition import running_gateway
from serving.config.file import load_config
from tests.openai_server import fails

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus/alerts.yml"
QUESTION = "When was the director of Heat born?"
ADDED = {"instance", "job"}
"""Labels that Prometheus adds to every series."""
WORDS = {"by", "increase", "rate", "sum", "min", "max", "histogram_quantile"}
"""Words of PromQL in the dashboard and the alerts."""
Exported = dict[str, set[str]]
"""Names of labels, by the name of the series."""


@pytest.fixture(scope="module")
async def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return the series of a gateway with a limited tenant, one good run and a failed one."""
    folder = tmp_path_factory.mktemp("gateway")
    database = await Database.open(f"sqlite:///{folder}/runs.db")
    await SQLAccounts(database).set_tenant(Tenant("default", tokens_per_day=10**9))
    await database.close()
    lines: list[str] = []
    async with played() as (models, retrieval):
        price = {"prompt": 1.0, "completion": 1.0}
        file = canned_config(
            folder,
            [models.base_url],
            retrieval,
            prices=dict.fromkeys(("delegator", "executor", "answerer"), price),
            report_cache={"enabled": True},
            telemetry={"metrics": "127.0.0.1:0"},
        )
        gateway = running_gateway(load_config(file), "127.0.0.1:0", lines.append)
        async with gateway as address, AsyncClient(address) as client:
            await client.ask(QUESTION)
            models.plays(fails(400, "no such model"))
            with pytest.raises(GatewayError):
                await client.ask("Who directed Heat?")
            url = next(line.rpartition(" ")[2] for line in lines if "metrics" in line)
            series: Exported = {}
            while not {"rolegate_quota_left_ratio", "rolegate_ready"} <= series.keys():
                series = await _scraped(url)
    return series | {"up": set()}


async def _scraped(url: str) -> Exported:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        text = await response.text()
    series = defaultdict[str, set[str]](set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series[sample.name].update(sample.labels)
    return dict(series)


def problems(expression: str, exported: Exported) -> list[str]:
    """Return the names and labels in a PromQL expression that are not exported."""
    plain = re.sub(r'"[^"]*"|\[[^\]]*\]', "", expression)  # without strings and durations
    unknown: list[str] = []
    used: set[str] = set()
    for name, matchers in re.findall(r"([a-zA-Z_:]\w*)\s*\{([^}]*)\}", plain):
        labels = set(re.findall(r"(\w+)\s*[=!]", matchers))
        unknown += sorted(labels - exported.get(name, set()) - ADDED)
    names = re.sub(r"\{[^}]*\}|\bby\s*\([^)]*\)", "", plain)
    for name in re.findall(r"[a-zA-Z_:]\w*", names):
        if name in exported:
            used |= exported[name]
        elif name not in WORDS:
            unknown.append(name)
    for grouping in re.findall(r"\bby\s*\(([^)]*)\)", plain):
        unknown += sorted(set(re.findall(r"\w+", grouping)) - used - ADDED)
    return unknown


def expressions() -> Iterator[tuple[str, str, str]]:
    """Yield a title, an expression and its legend, for each alert and each query of a panel."""
    for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            legend = re.sub(r"\$labels\.(\w+)", r"\1", rule["annotations"]["summary"])
            yield rule["alert"], rule["expr"], re.sub(r"\{\{ \$value.*?\}\}", "", legend)
    dashboard = json.loads((DEPLOY / "grafana/dashboard.json").read_text("utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


@pytest.mark.parametrize(("title", "expression", "legend"), expressions())
async def test_names_and_labels_are_exported(
    exported: Exported, title: str, expression: str, legend: str
) -> None:
    """A legend or a summary shows only labels that the expression keeps."""
    assert problems(expression, exported) == []
    shown = set(re.findall(r"\{\{\s*(\w+)", legend))
    groupings = re.findall(r"\bby\s*\(([^)]*)\)", expression)
    kept = set(re.findall(r"\w+", " ".join(groupings)))
    if not groupings:
        (name,) = re.findall(r"rolegate_\w+|\bup\b", expression)
        kept = exported[name] | ADDED
    assert shown <= kept, title


async def test_variables_of_the_dashboard_are_labels(exported: Exported) -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboard.json").read_text("utf-8"))
    for variable in dashboard["templating"]["list"]:
        metric, label = re.findall(r"\w+", variable["definition"].removeprefix("label_values"))
        assert label in exported[metric] | ADDED


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("rolegate_run_queued > 0", ["rolegate_run_queued"]),
        ("rate(rolegate_runs[5m])", ["rolegate_runs"]),
        ('rate(rolegate_runs_total{state="failed"}[5m])', ["state"]),
        ("sum by (reasons) (rate(rolegate_run_failures_total[5m]))", ["reasons"]),
        ("summ(rolegate_ready)", ["summ"]),
    ],
)
async def test_a_misspelt_name_or_label_is_found(
    exported: Exported, expression: str, wrong: list[str]
) -> None:
    assert problems(expression, exported) == wrong


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_the_alerts_are_valid_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True)


def test_every_alert_says_what_to_do() -> None:
    for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"].endswith(".")
            assert rule["annotations"]["action"].endswith(".")
