"""Wherever the records lie and whoever does the passes: sparse, wide, at the outputs of a run, with rates."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from noshadow import InputError, LastLayer, Trace, audit, score
from noshadow.curvature import dense
from noshadow.scoring import score_with_diagnostics
from tests.sources.test_layers_on_disk import arrays, cut, write

OUTPUTS = np.random.default_rng(7).normal(size=(3, 60, 3))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(dense, "_CHUNK_BYTES", 7 * 8 * 6)
    monkeypatch.setattr(dense, "most_records", lambda k, r: None)


def close(one, other):
    pd.testing.assert_frame_equal(one, other, rtol=1e-8, atol=1e-10)


def thinned(head="softmax", n=60, p=12):
    x, z, y = arrays(head, n=n, p=p, dtype=np.float64)
    x[np.random.default_rng(1).random(x.shape) < 0.7] = 0.0
    return x, z, y


@pytest.mark.parametrize("curvature", ["dense", "blocks", "kronecker", "iterative"])
def test_every_curvature_takes_a_layer_on_disk_and_at_other_outputs(tmp_path, curvature):
    x, z, y = arrays()
    held, open_ = LastLayer(x, z, y, ridge=0.5), LastLayer.open(write(tmp_path / "a", "npy", x, z, y), ridge=0.5)
    trace = Trace.from_outputs(OUTPUTS)
    close(score(open_, trace=trace, curvature=curvature), score(held, trace=trace, curvature=curvature))
    moved = open_.at(trace.mean_outputs)
    assert torch.equal(moved.outputs, trace.mean_outputs.double())
    assert torch.equal(moved.features, open_.features)
    assert torch.equal(moved.targets, open_.targets)
    assert torch.equal(moved.records(slice(50, 60)).outputs, trace.mean_outputs[50:].double())


def test_rows_of_a_sparse_layer_are_those_of_the_dense_one():
    x, z, y = thinned()
    weight = np.linspace(0.0, 2.0, 60)
    thin, full = (LastLayer(one, z, y, sample_weight=weight) for one in (sparse.csr_matrix(x), x))
    assert thin.sparse
    assert not full.sparse
    for part in (sparse.csr_matrix(x), torch.from_numpy(x).to_sparse()):
        with pytest.raises(InputError, match="records: chunk 0 has sparse features; make them dense"):
            LastLayer.open([(part, z, y)])
    for rows in (slice(0, 60), slice(17, 29), slice(59, 60)):
        assert np.array_equal(thin.source.read(rows).features.to_dense().numpy(), x[rows])
        for name in ("design", "outputs", "targets", "weights"):
            assert torch.equal(getattr(thin.records(rows), name), getattr(full.records(rows), name)), name


def test_a_sparse_layer_is_kept_in_blocks_and_told_from_another(tmp_path):
    x, z, y = thinned()
    thin = LastLayer(sparse.csr_matrix(x), z, y, ridge=0.5)
    trace = Trace.from_outputs(OUTPUTS)
    first = score(thin, trace=trace, store=tmp_path)
    close(first, score(LastLayer(x, z, y, ridge=0.5), trace=trace))
    pd.testing.assert_frame_equal(score(thin, trace=trace, store=tmp_path), first, check_exact=True)
    moved = sparse.csr_matrix(x)
    moved.indices[0] += 1  # the same values, one of them in another column
    with pytest.raises(InputError, match="is of a run with other records"):
        score(LastLayer(moved, z, y, ridge=0.5), trace=trace, store=tmp_path)
    thin.save(tmp_path / "layer.safetensors")
    again = LastLayer.load(tmp_path / "layer.safetensors")
    assert again.sparse
    close(score(again, trace=trace), first)


@pytest.mark.parametrize("thin", [False, True])
def test_the_n_sided_form_goes_through_blocks(tmp_path, thin):
    x, z, y = thinned("squared", n=40, p=90)
    x = sparse.csr_matrix(x) if thin else x
    layer = LastLayer(x, z, y, "squared", ridge=0.5)
    first = score(layer, store=tmp_path)
    close(first, score(layer))
    assert list(tmp_path.glob("sided-scores-*"))
    assert not list(tmp_path.glob("scores-*"))
    pd.testing.assert_frame_equal(score(layer, store=tmp_path), first, check_exact=True)
    if not thin:
        close(score(LastLayer.open(write(tmp_path / "layer", "npy", x, z, y), "squared", ridge=0.5)), first)


def test_both_points_of_a_run_are_kept_and_rates_follow(tmp_path):
    x, z, y = arrays()
    layer = LastLayer.open(write(tmp_path / "layer", "npy", x, z, y), ridge=0.5)
    trace, held_out = Trace.from_outputs(OUTPUTS, y, "softmax"), (-2.0 * z, y)
    options = {"trace": trace, "spread": (1.0, 1.2), "held_out": held_out, "full_step": True}
    plain, facts = score_with_diagnostics(LastLayer(x, z, y, ridge=0.5), **options)
    blocks, same = score_with_diagnostics(layer, **options, store=tmp_path / "store")
    close(blocks, plain)
    assert {"exposure", "attack_power", "attack_tpr", "mean_trace"} <= set(blocks)
    assert facts.calibration is not None
    assert same.calibration is not None
    assert list((tmp_path / "store").glob("scores-*"))
    assert list((tmp_path / "store").glob("at-scores-*"))
    again = score(layer, **options, store=tmp_path / "store")
    pd.testing.assert_frame_equal(again, blocks, check_exact=True)
    # rates are made of what is kept, so that other spreads need no other folder
    other = score(layer, **{**options, "spread": (0.8, 1.1)}, store=tmp_path / "store")
    close(other, score(layer, **{**options, "spread": (0.8, 1.1)}))
    assert not np.allclose(other["attack_power"], blocks["attack_power"])


def test_blocks_are_for_the_exact_hessian_alone(tmp_path):
    layer = LastLayer(*arrays(), ridge=0.5)
    asked = [("store", {"store": tmp_path}, one) for one in ("blocks", "kronecker", "iterative")]
    for name, asked_for, curvature in (*asked, ("engine", {"engine": "ray"}, "iterative")):
        with pytest.raises(InputError, match=f"{name}: it is for the exact Hessian.*='{curvature}' .as asked"):
            score(layer, curvature=curvature, **asked_for)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"store: .*dense needs .* GiB.*; pass a larger memory="):
        audit(layer, memory=1e-6, store=tmp_path)
    close(score(layer, ["loss"], curvature="kronecker", store=tmp_path / "loss"), score(layer, ["loss"]))
    for name, asked in (("store", tmp_path), ("engine", "ray"), ("address", "10.0.0.1:6379")):
        with pytest.raises(InputError, match=f"{name}: candidates= are scored in one go"):
            score(layer, candidates=layer, **{name: asked})


def test_candidates_and_layers_on_disk(tmp_path):
    x, z, y = arrays()
    other = arrays(seed=3)
    on_disk = LastLayer.open(write(tmp_path / "layer", "npy", x, z, y), ridge=0.5)
    there = LastLayer.open(write(tmp_path / "other", "safetensors", *other), ridge=0.5)
    held, candidates = LastLayer(x, z, y, ridge=0.5), LastLayer(*other, ridge=0.5)
    close(score(on_disk, candidates=there), score(held, candidates=candidates))
    close(score(LastLayer.open(cut((x, z, y), [20, 41]), ridge=0.5), candidates=there), score(held, candidates=there))


def test_reruns_and_held_out_layers_on_disk(tmp_path):
    x, z, y = arrays()
    rng = np.random.default_rng(5)
    parts = {"model": z, "rerun": z + rng.normal(size=z.shape), "held": 0.9 * z, "rerun_held": 0.7 * z}
    held = {name: LastLayer(x, outputs, y, ridge=0.5) for name, outputs in parts.items()}
    there = {
        name: LastLayer.open(write(tmp_path / name, "npy", x, outputs, y), ridge=0.5) for name, outputs in parts.items()
    }
    tables = [
        audit(one["model"], rerun=(one["rerun"], one["rerun_held"]), held_out=one["held"], **options).table
        for one, options in ((held, {}), (there, {"store": tmp_path / "store"}))
    ]
    assert "attack_tpr" in tables[0]
    close(tables[1].drop(columns="flagged"), tables[0].drop(columns="flagged"))
