"""Free memory: the least of what the system and the container say, whatever of it is there to be read."""

from __future__ import annotations

import math

import numpy as np
import pytest

from noshadow import LastLayer, memory, score
from noshadow.errors import InputError
from noshadow.memory import free_memory, require_free_memory, working_memory


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine that says nothing yet; the files it would say it in."""
    monkeypatch.setattr(memory, "_SYSTEM", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    return tmp_path


def test_the_least_of_what_is_said_counts(machine):
    assert free_memory() == math.inf  # no /proc, no cgroups
    require_free_memory(1e30, "data: all of it", "pass less")
    (machine / "memory.max").write_text("5000\n")
    (machine / "memory.current").write_text("2000\n")
    assert free_memory() == 3000.0  # a container without /proc/meminfo
    (machine / "meminfo").write_text("MemTotal: 8 kB\nMemAvailable:          2 kB\n")
    assert free_memory() == 2048.0
    (machine / "memory.max").write_text("max\n")
    assert free_memory() == 2048.0
    (machine / "meminfo").write_text("MemTotal: 8 kB\n")  # a kernel that does not count what is available
    assert free_memory() == math.inf


def test_what_does_not_fit_is_refused_with_both_sizes(machine):
    (machine / "meminfo").write_text(f"MemAvailable: {2**21} kB\n")
    require_free_memory(2.0**31, "data: the table", "pass less")
    with pytest.raises(InputError, match=r"^data: the table takes 3.0 GiB, 2.0 GiB are free; pass less$"):
        require_free_memory(3 * 2.0**30, "data: the table", "pass less")


def test_this_machine_has_a_number_of_bytes():
    assert 2**20 < free_memory() < 2**50


def test_a_computation_may_use_half_of_what_is_free_unless_told(machine):
    assert working_memory(None) == 4.0  # nothing is said of this machine
    (machine / "memory.max").write_text(str(6 * 2**30))
    (machine / "memory.current").write_text(str(2 * 2**30))
    assert working_memory(None) == 2.0
    assert working_memory(0.5) == 0.5
    with pytest.raises(InputError, match="memory: expected a positive number of GiB, got -1"):
        working_memory(-1)


@pytest.mark.parametrize("asked", [math.inf, math.nan, "4", True, 0, [4.0]])
def test_memory_that_is_no_number_of_gib_is_refused(asked):
    with pytest.raises(InputError, match=r"^memory: expected a positive number of GiB, got .*; leave it out for half"):
        working_memory(asked)
    layer = LastLayer([[0.0], [1.0], [3.0]], [[0.1], [1.0], [2.9]], [0.0, 1.2, 2.8], "squared")
    with pytest.raises(InputError, match=r"^memory: expected"):
        score(layer, memory=asked)


@pytest.mark.parametrize("share", ["0.1", math.nan, True, 0.0, 1.5, [0.1]])
def test_a_share_that_is_no_number_is_refused(share):
    layer = LastLayer([[0.0], [1.0], [3.0]], [[0.1], [1.0], [2.9]], [0.0, 1.2, 2.8], "squared")
    with pytest.raises(InputError, match=r"^refine: expected a share of the records between 0 and 1, got"):
        score(layer, refine=share)


def test_numbers_of_any_kind_will_do():
    assert [working_memory(one) for one in (np.float32(0.5), np.int64(2), 3)] == [0.5, 2.0, 3.0]
