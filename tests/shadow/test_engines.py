"""Engines: the same bits from each of them, and nothing lost when workers die or train raises."""

from __future__ import annotations

import time
import warnings
from functools import partial

import numpy as np
import pytest

from noshadow import shadow
from noshadow.errors import InputError
from noshadow.shadow.engines import share_cores
from tests.shadow.toys import N_SAMPLES, X, dies_once, fails_for, noted_ridge, ridge


def study(directory, train=ridge, n_models=8, **settings):
    return shadow.Study(train, N_SAMPLES, n_models=n_models, store=directory, **settings)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return study(tmp_path_factory.mktemp("undisturbed"), n_target_models=2).run("serial")


def test_the_result_has_what_was_asked(undisturbed):
    plan = shadow.Plan(N_SAMPLES, 0)
    assert undisturbed.outputs.shape == (8, N_SAMPLES, 1)
    assert undisturbed.extra("weights").shape == (8, 3)
    assert undisturbed.target_models.outputs.shape == (2, N_SAMPLES, 1)
    assert (undisturbed.membership.sum(axis=1) == N_SAMPLES // 2).all()
    for number, (row, seed) in enumerate(zip(undisturbed.outputs, undisturbed.seeds, strict=True)):
        key = shadow.ModelKey("shadow", number)
        assert seed == plan.seed_of(key)
        assert np.array_equal(row[:, 0], ridge(plan.members(key), int(seed))["outputs"])
    key = shadow.ModelKey("target", 1)
    target = ridge(plan.members(key), plan.seed_of(key))
    assert np.array_equal(undisturbed.target_models.outputs[1][:, 0], target["outputs"])
    with pytest.raises(InputError, match=r"no array 'feature'.*membership, outputs, weights"):
        undisturbed.extra("feature")


def test_one_process_gives_the_same_bits(tmp_path, undisturbed):
    result = study(tmp_path, n_target_models=2).run("processes", workers=1)
    assert np.array_equal(result.outputs, undisturbed.outputs)
    assert np.array_equal(result.membership, undisturbed.membership)
    assert np.array_equal(result.target_models.outputs, undisturbed.target_models.outputs)


def test_two_processes_give_the_same_bits_though_one_is_killed(tmp_path, undisturbed):
    result = study(tmp_path / "store", partial(dies_once, folder=tmp_path)).run("processes", workers=2)
    assert (tmp_path / "died").exists()
    assert np.array_equal(result.outputs, undisturbed.outputs)


@pytest.mark.own_process
def test_ray_gives_the_same_bits_though_a_worker_is_killed(tmp_path, undisturbed):
    result = study(tmp_path / "store", partial(dies_once, folder=tmp_path)).run("ray")
    assert (tmp_path / "died").exists()
    assert np.array_equal(result.outputs, undisturbed.outputs)


@pytest.mark.own_process
def test_ray_on_a_cluster_that_exists(tmp_path):
    import ray
    from ray.cluster_utils import Cluster

    bad_seed = shadow.Plan(N_SAMPLES).seed_of(shadow.ModelKey("shadow", 2))
    n_samples, attempts = N_SAMPLES, tmp_path / "attempts"

    def train(members, seed):  # sent by value: the cluster's machines do not have the tests
        if seed == bad_seed:
            with attempts.open("a") as file:
                file.write("x")
            raise ZeroDivisionError("a bad day")
        return [float(seed)] * n_samples

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        try:
            with pytest.raises(shadow.StudyError, match=rf"model 2 \(seed {bad_seed}\): ZeroDivisionError: a bad"):
                study(tmp_path / "store", train).run("ray", address=cluster.address)
            assert not ray.is_initialized()
        finally:
            cluster.shutdown()
    assert attempts.read_text() == "xx"
    kept = shadow.load(tmp_path / "store", partial=True)
    assert [key.number for key in kept.keys] == [0, 1, 3, 4, 5, 6, 7]
    assert np.array_equal(kept.outputs[:, 0, 0], kept.seeds)


def test_closures_and_lambdas_can_be_sent(tmp_path, undisturbed):
    centred, back = X - 1.0, lambda x: x + 1.0

    def train(members, seed):
        print("this must not disturb the exchange with the parent")
        np.testing.assert_allclose(back(centred), X)
        return ridge(members, seed)

    assert np.array_equal(study(tmp_path, train).run("processes", workers=1).outputs, undisturbed.outputs)


def test_an_exception_names_model_and_seed_is_retried_once_and_stops_nothing_else(tmp_path, undisturbed):
    seed = int(undisturbed.seeds[3])
    train = partial(fails_for, bad_seed=seed, folder=tmp_path)
    with pytest.raises(shadow.StudyError, match=rf"1 of 8.*\n  model 3 \(seed {seed}\): ZeroDivision") as caught:
        study(tmp_path / "store", train).run("processes", workers=1)
    assert "in fails_for" in str(caught.value)  # the worker's own traceback
    assert list(caught.value.failures) == [shadow.ModelKey("shadow", 3)]
    assert (tmp_path / "attempts").read_text() == "xx"
    kept = shadow.load(tmp_path / "store", partial=True)
    assert [key.number for key in kept.keys] == [0, 1, 2, 4, 5, 6, 7]
    assert np.array_equal(kept.outputs, np.delete(undisturbed.outputs, 3, axis=0))


@pytest.mark.parametrize(
    ("result", "named"),
    [
        (np.zeros(N_SAMPLES - 1), "all 24 records"),
        (np.full(N_SAMPLES, np.nan), "NaN or infinite in rows 0, 1"),
        (np.array(["a"] * N_SAMPLES), "numeric array"),
        ({"logits": np.zeros(N_SAMPLES)}, "key 'outputs'"),
        ({"outputs": np.zeros(N_SAMPLES), "membership": np.zeros(3)}, "'membership'"),
        (None, "numeric array"),
    ],
)
def test_what_train_gives_is_checked(tmp_path, result, named):
    with pytest.raises(shadow.StudyError, match=named):
        study(tmp_path, lambda members, seed: result, n_models=2).run("serial")


def test_a_train_that_always_kills_its_worker_ends_the_study_with_its_name(tmp_path):
    def train(members, seed):
        import os

        os._exit(9)

    with pytest.raises(shadow.StudyError, match=r"model 0 .*worker process ended .exit code 9"):
        study(tmp_path, train, n_models=1).run("processes")


def test_a_finished_study_trains_nothing(tmp_path):
    train = partial(noted_ridge, folder=tmp_path)
    first = study(tmp_path / "store", train).run("serial")
    second = study(tmp_path / "store", train).run("serial")
    (notes,) = (path for path in tmp_path.iterdir() if path.is_file())
    assert sorted(notes.read_text().split()) == sorted(map(str, first.seeds))
    assert np.array_equal(first.outputs, second.outputs)


def test_processes_run_side_by_side(tmp_path):
    def nap(members, seed):
        start = time.time()
        time.sleep(1.0)
        return [[start, time.time()]] * N_SAMPLES

    spans = study(tmp_path, nap, n_models=6).run("processes", workers=2).outputs[:, 0]
    overlaps = [a for i, a in enumerate(spans) for b in spans[i + 1 :] if a[0] < b[1] and b[0] < a[1]]
    assert len(overlaps) >= 2


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"engine": "threads"}, "engine: 'threads' is not an engine"),
        ({"engine": "processes", "address": "auto"}, "address"),
        ({"engine": "processes", "workers": 0}, "workers"),
        ({"engine": "processes", "threads": -1}, "threads"),
    ],
)
def test_bad_arguments_of_run_are_named(tmp_path, settings, named):
    with pytest.raises(InputError, match=named):
        study(tmp_path).run(**settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"train": 3}, "train"),
        ({"n_models": 0}, "n_models"),
        ({"head": "hinge"}, "head"),
        ({"targets": np.zeros(3)}, "targets: expected 24 rows"),
    ],
)
def test_bad_arguments_of_a_study_are_named(tmp_path, settings, named):
    with pytest.raises(InputError, match=named):
        study(tmp_path, **settings)


def test_cores_are_shared(monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 16)
    assert share_cores(200, None, None) == (16, 1)
    assert share_cores(4, None, None) == (4, 4)
    assert share_cores(1, None, None) == (1, 8)
    assert share_cores(200, 3, None) == (3, 1)
    assert share_cores(200, None, 4) == (4, 4)


def test_a_train_that_cannot_be_sent_is_named(tmp_path):
    import threading

    lock = threading.Lock()
    with pytest.raises(InputError, match="train: cannot be sent"):
        study(tmp_path, lambda members, seed: lock, procedure="lock").run("processes")
