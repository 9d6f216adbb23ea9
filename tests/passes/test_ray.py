"""Ray: the scores of one process from several, though one of them is killed."""

from __future__ import annotations

import os
import signal

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

from noshadow import InputError, LastLayer, Trace, score
from noshadow.curvature import dense
from noshadow.passes import Blocks
from noshadow.passes.ray_tasks import RayTasks
from noshadow.scoring import score_with_diagnostics
from tests.sources.test_layers_on_disk import arrays, cut, write

pytestmark = pytest.mark.own_process


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One for all tests of the file: it takes seconds to start."""
    import ray

    tasks = RayTasks(workers=2)
    yield tasks
    tasks.close()
    assert not ray.is_initialized()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(dense, "_CHUNK_BYTES", 7 * 8 * 6)
    monkeypatch.setattr(dense, "most_records", lambda k, r: None)


def dying(source, folder):
    """The source, of which the first worker that reads the 30th row is killed. Made here: sent by value."""

    class Dying(type(source)):
        def read(self, rows):
            if os.getpid() != self.driver and rows.start <= 30 < rows.stop:
                try:
                    os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().read(rows)

    one = object.__new__(Dying)
    one.__dict__.update(source.__dict__, driver=os.getpid(), flag=str(folder / "died"))
    return one


@pytest.mark.parametrize("head", ["softmax", "squared"])
def test_the_same_numbers_though_a_worker_is_killed(tmp_path, head):
    layer = LastLayer.open(write(tmp_path / "layer", "npy", *arrays(head)), head, ridge=0.5)
    plain = score(layer)
    blocks = score(layer, store=tmp_path / "store")
    object.__setattr__(layer, "source", dying(layer.source, tmp_path))
    on_ray = score(layer, engine="ray")
    assert (tmp_path / "died").exists()
    pd.testing.assert_frame_equal(on_ray, plain, rtol=1e-10, atol=1e-12)
    pd.testing.assert_frame_equal(on_ray, blocks, check_exact=True)  # one tree, whoever adds


@pytest.mark.parametrize("options", [{}, {"refine": 0.1}, {"refine": 0.1, "full_step": True}])
@pytest.mark.parametrize("curvature", ["kronecker", "blocks"])
def test_exact_answers_beside_an_approximation_though_a_worker_is_killed(tmp_path, monkeypatch, curvature, options):
    monkeypatch.setattr("noshadow.curvature.iterative._MOST_SYSTEMS", 7)
    layer = LastLayer.open(write(tmp_path / "layer", "npy", *arrays(n=120)), ridge=0.5)
    plain, told = score_with_diagnostics(layer, curvature=curvature, **options)
    assert told.accuracy.refined == (0 if "refine" not in options else pytest.approx(30, abs=90))
    object.__setattr__(layer, "source", dying(layer.source, tmp_path))
    on_ray, same = score_with_diagnostics(layer, curvature=curvature, engine="ray", **options)
    assert (tmp_path / "died").exists()  # they were found there
    pd.testing.assert_frame_equal(on_ray, plain, check_exact=True)  # batches are the same
    assert same.accuracy == told.accuracy


def test_what_ray_did_is_kept(tmp_path):
    layer = LastLayer(*arrays(), ridge=0.5)
    first = score(layer, store=tmp_path, engine="ray", trace=np.random.default_rng(0).random((4, 60)))
    again = score(layer, store=tmp_path, trace=np.random.default_rng(0).random((4, 60)))
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    outputs = np.random.default_rng(1).normal(size=(3, 60, 3))
    trace = Trace.from_outputs(outputs)
    pd.testing.assert_frame_equal(score(layer, trace=trace, engine="ray"), score(layer, trace=trace), rtol=1e-10)


def test_what_goes_wrong_on_a_worker_is_one_sentence(tmp_path, cluster):
    x, z, y = arrays()
    path = write(tmp_path / "layer", "npy", x, z, y)
    layer = LastLayer.open(path)
    x[33] = np.nan
    content = (path / "features.npy").stat()
    np.save(path / "features.npy", x)
    os.utime(path / "features.npy", ns=(content.st_atime_ns, content.st_mtime_ns))
    with pytest.raises(InputError, match=r"features\.npy: rows 0 … 59 .* are not what they were"):
        score(layer, engine="ray")
    with pytest.raises(InputError, match=r"engine: the layer cannot be sent to other processes .*; save it"):
        score(LastLayer.open(cut(arrays(), [20, 40])), engine="ray")

    def dies(layer):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(InputError, match=r"engine: Ray lost a block 4 times .* pass a smaller memory="):
        Blocks(cluster).added(LastLayer(*arrays()), "a", dies, 60, lambda _: None)


def test_a_sparse_layer_and_both_points_of_a_run_go_to_workers():
    x, z, y = arrays(n=30, p=6, dtype=np.float64)
    x[np.random.default_rng(1).random(x.shape) < 0.5] = 0.0
    trace = Trace.from_outputs(np.random.default_rng(1).normal(size=(3, 30, 3)), y, "softmax")
    on_ray = score(LastLayer(csr_matrix(x), z, y, ridge=0.5), trace=trace, engine="ray")
    pd.testing.assert_frame_equal(on_ray, score(LastLayer(x, z, y, ridge=0.5), trace=trace), rtol=1e-8, atol=1e-10)
