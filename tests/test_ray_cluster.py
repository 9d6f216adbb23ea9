"""What Ray is told when a cluster is started or joined; Ray itself is in tests/passes/test_ray.py and tests/shadow."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from noshadow.errors import InputError
from noshadow.import_paths import import_path
from noshadow.ray_cluster import RETRIES_OF_LOST_WORKERS, RayCluster, first_line


class Spoken(SimpleNamespace):
    """What is asked of Ray, in its place."""

    def __init__(self, connected: bool = False, cores: float = 3.0) -> None:
        self.asked: list[dict[str, Any]] = []
        super().__init__(connected=connected, resources={"CPU": cores} if cores else {})

    def is_initialized(self) -> bool:
        return self.connected

    def init(self, **asked: Any) -> None:
        self.asked.append(asked)
        if asked["address"] == "nowhere:1":
            raise ConnectionError("\n  ray did not answer  \nand here is why, on forty lines")
        self.connected = True

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, **options: Any) -> Any:
        return lambda function: (function, options)

    def shutdown(self) -> None:
        self.connected = False


@pytest.fixture
def ray(monkeypatch):
    def speaks(**kept: Any) -> Spoken:
        found = Spoken(**kept)
        monkeypatch.setitem(sys.modules, "ray", found)
        return found

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "")  # so that it is put back
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    return speaks


def test_a_local_cluster_imports_from_where_this_process_does_and_is_stopped(ray):
    spoken = ray()
    cluster = RayCluster(None, 5)
    (asked,) = spoken.asked
    assert asked["address"] == "local"
    assert asked["num_cpus"] == 5
    assert asked["include_dashboard"] is False
    assert asked["runtime_env"] == {"env_vars": {"PYTHONPATH": import_path()}}
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert cluster.cores == 3
    assert cluster.task(len, cores=2) == (len, {"num_cpus": 2, "max_retries": RETRIES_OF_LOST_WORKERS})
    cluster.close()
    assert not spoken.connected


def test_a_cluster_that_this_process_is_connected_to_is_used_and_left_alone(ray):
    spoken = ray(connected=True, cores=0)
    cluster = RayCluster("elsewhere:6379", 5)
    assert not spoken.asked
    assert cluster.cores == 1
    cluster.close()
    assert spoken.connected


def test_a_cluster_at_an_address_is_joined_and_left(ray):
    spoken = ray()
    cluster = RayCluster("elsewhere:6379", None)
    (asked,) = spoken.asked
    assert asked["address"] == "elsewhere:6379"
    assert "runtime_env" not in asked
    cluster.close()
    assert not spoken.connected


def test_an_address_where_nothing_answers(ray):
    ray()
    with pytest.raises(
        InputError, match=r"^address: no Ray cluster answers at nowhere:1 \(ConnectionError: ray did not"
    ):
        RayCluster("nowhere:1", None)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"noshadow\[ray\]"):
        RayCluster(None, None)


def test_an_error_in_one_line():
    assert first_line(ValueError("\n\n  a  \n b")) == "ValueError: a"
    assert first_line(ValueError()) == "ValueError: no message"
    assert len(first_line(ValueError("x" * 1000))) < 220
