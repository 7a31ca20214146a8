"""The files in deploy/ name what is there: configs load, ports and paths agree, manifests are valid
by Kubernetes' schemas, and the programs that read the files accept them, where installed.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import tomlkit
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from serving.config.check import problems
from serving.config.file import read_config

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomlkit.parse((ROOT / "pyproject.toml").read_text())["project"]
CONFIGS = [DEPLOY / "compose/rolegate.toml", DEPLOY / "kubernetes/rolegate.toml"]
KUSTOMIZATION = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def manifests() -> list[dict[str, Any]]:
    """Return all objects that kustomize would apply, the Job that creates the first key, and the
    Pod through which documents are copied.
    """
    files = [*KUSTOMIZATION["resources"], "first-key.yaml", "documents.yaml"]
    texts = [(DEPLOY / "kubernetes" / name).read_text() for name in files]
    return [manifest for text in texts for manifest in yaml.safe_load_all(text)]


def pods() -> Iterator[dict[str, Any]]:
    """Yield the specification of each pod."""
    for manifest in manifests():
        spec = manifest.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield spec["template"]["spec"]
        elif manifest["kind"] == "Pod":
            yield spec


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variables that the configs name."""
    for name in ("OPENAI_API_KEY", "PGPASSWORD"):
        monkeypatch.setenv(name, "secret")


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
def test_a_config_loads_and_listens_where_the_files_look(path: Path) -> None:
    config = read_config(path)
    (mounted,) = config.retrieval.documents
    missing = f"retrieval.documents: there is no file or folder {mounted}; fix the path."
    assert [str(problem) for problem in problems(config)] == [missing]
    assert config.server.address == "0.0.0.0:50551"
    assert config.server.http == "0.0.0.0:50580"
    assert config.telemetry.metrics == "0.0.0.0:9464"
    assert config.server.store.startswith("postgresql://")
    assert str(config.server.log) == "/data/log"


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.vllm"])
def test_an_image_copies_what_is_there_and_installs_extras_that_exist(name: str) -> None:
    lines = re.sub(r"\\\n", " ", (DEPLOY / name).read_text()).splitlines()
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), line
                assert f"!{source}" in (ROOT / ".dockerignore").read_text().splitlines(), line
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", "\n".join(lines), re.MULTILINE)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert {"pyproject.toml", "protos", "router", "serving"} <= copied


def test_compose_names_services_files_and_volumes_that_are_there() -> None:
    volumes = set(COMPOSE["volumes"])
    for name, service in COMPOSE["services"].items():
        assert set(service.get("depends_on", ())) <= set(COMPOSE["services"]), name
        for mounted in service.get("volumes", ()):
            source = mounted.split(":")[0]
            if source == "./documents":  # the user's
                continue
            assert source in volumes or (DEPLOY / source).exists(), mounted
    gateways = [service for service in COMPOSE["services"].values() if "hostname" in service]
    logs = [
        volume for service in gateways for volume in service["volumes"] if "/data/log" in volume
    ]
    assert len(gateways) == 2
    assert len(set(logs)) == 2, "two gateways share a log"


def test_a_gateway_has_time_to_finish_before_it_is_killed() -> None:
    server = read_config(CONFIGS[0]).server
    stops = [
        service["stop_grace_period"]
        for service in COMPOSE["services"].values()
        if "stop_grace_period" in service
    ]
    unit = (DEPLOY / "systemd/rolegate.service").read_text()
    (unit_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    (pod_s,) = [
        pod["terminationGracePeriodSeconds"]
        for pod in pods()
        if "terminationGracePeriodSeconds" in pod
    ]
    limits = [int(stop.removesuffix("s")) for stop in stops]
    limits += [int(unit_s), pod_s]
    assert min(limits) > server.drain_s + server.grace_s


@pytest.mark.parametrize("manifest", manifests(), ids=lambda manifest: manifest["kind"])
def test_a_manifest_is_valid_by_the_schemas_of_kubernetes(manifest: dict[str, Any]) -> None:
    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(manifest, version, strict=True)


def test_kustomize_renders_all_objects(tmp_path: Path) -> None:
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed")
    folder = shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    shutil.copy(folder / "secret.example.env", folder / "secret.env")
    rendered = subprocess.run(
        [program, "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert rendered.returncode == 0, rendered.stderr
    objects = [*yaml.safe_load_all(rendered.stdout)]
    written = {manifest["kind"] for manifest in manifests()} - {"Job", "Pod"}
    assert {manifest["kind"] for manifest in objects} == written | {"ConfigMap", "Secret"}
    for manifest in objects:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    specs = {manifest["kind"]: manifest["spec"] for manifest in objects if "spec" in manifest}
    gateway = specs["StatefulSet"]["template"]["metadata"]["labels"]
    index = specs["CronJob"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    for manifest in objects:
        if manifest["kind"] not in ("Service", "StatefulSet", "PodDisruptionBudget"):
            continue
        selector = manifest["spec"]["selector"]
        selected = selector.get("matchLabels", selector).items()
        assert selected <= gateway.items()
        assert not selected <= index.items(), "a pod that builds the index is no gateway"


def test_pods_use_images_volumes_and_configs_that_are_declared() -> None:
    generated = {
        *(config["name"] for config in KUSTOMIZATION["configMapGenerator"]),
        *(secret["name"] for secret in KUSTOMIZATION["secretGenerator"]),
    }
    images = {image["name"] for image in KUSTOMIZATION["images"]}
    claims = {
        manifest["metadata"]["name"]
        for manifest in manifests()
        if manifest["kind"] == "PersistentVolumeClaim"
    }
    for pod in pods():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in generated
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
        for container in pod["containers"]:
            assert container["image"] in images or "registry.example" in container["image"]
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            assert mounts <= {*volumes, "data"}
            for source in container.get("envFrom", []):
                assert source["secretRef"]["name"] in generated
    for name in KUSTOMIZATION["resources"]:
        assert (DEPLOY / "kubernetes" / name).is_file()


def test_pods_run_without_privileges() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert not container["securityContext"]["allowPrivilegeEscalation"]


def test_haproxy_accepts_its_file() -> None:
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if program is None:
        pytest.skip("HAProxy is not installed (Debian: apt-get install haproxy)")
    checked = subprocess.run(
        [program, "-c", "-f", DEPLOY / "proxies/haproxy.cfg"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_the_proxies_lead_to_the_gateways_of_compose() -> None:
    haproxy = (DEPLOY / "proxies/haproxy.cfg").read_text()
    envoy = yaml.safe_load((DEPLOY / "proxies/envoy.yaml").read_text())
    gateways = {name for name in COMPOSE["services"] if name.startswith("gateway")}
    assert set(re.findall(r"^\s+server (\S+) ", haproxy, re.MULTILINE)) == gateways
    assert gateways <= set(re.findall(r"gateway-\d", str(envoy)))


def test_systemd_accepts_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd is not installed")
    unit = tmp_path / "rolegate.service"
    text = (DEPLOY / "systemd/rolegate.service").read_text()
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    verified = subprocess.run(
        [program, "verify", unit], capture_output=True, text=True, check=False
    )
    assert "rolegate.service" not in verified.stderr, verified.stderr
    judged = subprocess.run(
        [program, "security", "--offline=yes", "--threshold=20", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout[-300:]  # exposure of at most 2.0


def test_the_lock_holds_a_fitting_version_of_each_dependency_of_the_image() -> None:
    """After a change of pyproject.toml, `sh scripts/lock.sh` brings it up to date."""
    locked = re.findall(
        r"^([a-z0-9-]+)==([^ ;]+)", (DEPLOY / "requirements.lock").read_text(), re.MULTILINE
    )
    versions = dict(locked)
    wanted = list(PROJECT["dependencies"])
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    (default,) = re.findall(r"^ARG EXTRAS=(\S+)$", dockerfile, re.MULTILINE)
    extras = default.split(",")
    assert f'"$EXTRAS" = {default} ]' in dockerfile, "the lock is for the default extras"
    assert re.findall(r"--extra (\S+)", (ROOT / "scripts/lock.sh").read_text()) == extras
    while extras:
        for text in PROJECT["optional-dependencies"][extras.pop()]:
            requirement = Requirement(text)
            if requirement.name == "rolegate":
                extras += requirement.extras
            else:
                wanted.append(text)
    assert len(wanted) > 40
    for requirement in map(Requirement, wanted):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, requirement
        assert requirement.specifier.contains(version), requirement
