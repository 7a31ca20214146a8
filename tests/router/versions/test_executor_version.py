"""Traffic: which version works in which run."""

import pytest

from router.versions import ExecutorVersion
from router.versions.book import Traffic, VersionState, traffic_of

OLD = "executor-000001"
NEW = "executor-000002"
RUNS = [f"run-{number:016x}" for number in range(4000)]


def version(name: str, state: VersionState, share: float = 0.0) -> ExecutorVersion:
    """Return a registered version."""
    return ExecutorVersion(name, state, share, 1.0, 1.0)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 0.5, 1.0])
def test_a_canary_gets_its_share_of_the_runs(share: float) -> None:
    """The share is as exact as chance allows (four standard deviations). A run always has the
    same version.
    """
    traffic = Traffic(OLD, NEW, "canary", share)
    versions = [traffic.serving(run) for run in RUNS]
    tolerance = 4 * (share * (1 - share) / len(RUNS)) ** 0.5
    assert abs(versions.count(NEW) / len(RUNS) - share) <= tolerance
    assert versions == [Traffic(OLD, NEW, "canary", share).serving(run) for run in RUNS]


def test_a_canary_keeps_its_runs_when_its_share_grows() -> None:
    small_share = Traffic(OLD, NEW, "canary", 0.2)
    large_share = Traffic(OLD, NEW, "canary", 0.5)
    assert all(large_share.serving(run) == NEW for run in RUNS if small_share.serving(run) == NEW)


def test_a_shadow_serves_no_run_and_is_compared_in_all() -> None:
    """Its share means nothing."""
    traffic = Traffic(OLD, NEW, "shadow", 0.7)
    assert {traffic.serving(run) for run in RUNS} == {OLD}
    assert {traffic.other(run) for run in RUNS} == {NEW}


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.8])
def test_equally_many_runs_of_either_version_are_compared(share: float) -> None:
    """The numbers are as exact as chance allows, and as large as possible."""
    traffic = Traffic(OLD, NEW, "canary", share)
    compared = [(traffic.serving(run), traffic.other(run)) for run in RUNS]
    expected = min(share, 1 - share)
    for pair in ((NEW, OLD), (OLD, NEW)):
        assert (
            abs(compared.count(pair) / len(RUNS) - expected)
            <= 4 * (expected * (1 - expected) / len(RUNS)) ** 0.5
        )
    assert set(compared) <= {(NEW, OLD), (OLD, NEW), (NEW, None), (OLD, None)}


def test_a_canary_with_all_runs_is_not_compared() -> None:
    """The active version serves no run."""
    traffic = Traffic(OLD, NEW, "canary", 1.0)
    assert {(traffic.serving(run), traffic.other(run)) for run in RUNS} == {(NEW, None)}


def test_without_a_candidate_nothing_is_compared() -> None:
    """The active version works alone."""
    assert (Traffic(OLD).serving("run-1"), Traffic(OLD).other("run-1")) == (OLD, None)


@pytest.mark.parametrize(
    ("states", "traffic"),
    [
        ([version(OLD, "active"), version(NEW, "registered")], Traffic(OLD)),
        ([version(NEW, "shadow"), version(OLD, "active")], Traffic(OLD, NEW, "shadow")),
        ([version(NEW, "canary", 0.2), version(OLD, "active")], Traffic(OLD, NEW, "canary", 0.2)),
        (
            [
                version(NEW, "active"),
                version(OLD, "retired"),
                version("executor-000003", "rolled_back"),
            ],
            Traffic(NEW),
        ),
        ([version(OLD, "retired")], None),
        ([], None),
    ],
)
def test_traffic_follows_from_the_versions_states(
    states: list[ExecutorVersion], traffic: Traffic | None
) -> None:
    """Inactive versions do not matter."""
    assert traffic_of(states) == traffic
