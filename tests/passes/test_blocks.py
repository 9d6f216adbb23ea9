"""Passes in blocks: the same scores, whatever is kept, lost or damaged in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noshadow import InputError, LastLayer, Trace, audit, score
from noshadow.curvature import CURVATURES, build_curvature, dense
from noshadow.passes import Blocks, summed
from noshadow.passes.store import Store
from noshadow.scores import SCORES, Score
from noshadow.scoring import score_with_diagnostics
from tests.sources.test_layers_on_disk import arrays, write

HEADS = ("softmax", "logistic", "squared")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Seven records a chunk: 9 or more blocks of 60 records."""
    monkeypatch.setattr(dense, "_CHUNK_BYTES", 7 * 8 * 6)
    monkeypatch.setattr(dense, "most_records", lambda k, r: None)


def close(one, other):
    pd.testing.assert_frame_equal(one, other, rtol=1e-10, atol=1e-12)


class Rows:
    """Counts records, and sums their numbers: exact, so that a block taken twice or never is seen."""

    def __init__(self):
        self.total = torch.zeros(2, dtype=torch.float64)

    def add(self, records):
        rows = torch.arange(records.rows.start, records.rows.stop, dtype=torch.float64)
        self.total += torch.stack([torch.tensor(float(len(rows))), rows.square().sum()])

    def sums(self):
        return {"total": self.total}

    def take(self, sums):
        self.total = sums["total"]


@settings(max_examples=60)
@given(n=st.integers(1, 200), chunk=st.integers(1, 9), stop=st.integers(0, 70), lost=st.sets(st.integers(0, 6)))
def test_every_record_once_whatever_is_lost(tmp_path_factory, n, chunk, stop, lost):
    folder = tmp_path_factory.mktemp("store")
    os.fsync, sync = (lambda handle: None), os.fsync  # thousands of files
    try:
        _every_record_once(folder, n, chunk, stop, lost)
    finally:
        os.fsync = sync


def _every_record_once(folder, n, chunk, stop, lost):
    layer = LastLayer(np.ones((n, 1)), np.zeros(n), np.zeros(n), "squared")
    wanted = [float(n), float((np.arange(n) ** 2).sum())]
    done = 0

    def interrupted(layer, job, blocks):
        nonlocal done
        for rows in blocks:
            done += 1
            if done > stop:
                raise KeyboardInterrupt
            yield job(layer.window(rows))

    store = Store(folder, {"a": 1})
    with suppress(KeyboardInterrupt):
        summed(layer.in_blocks(Blocks(interrupted, store)), "rows", Rows, chunk)
    files = sorted(folder.glob("rows-*"))
    assert len(files) <= 7  # log₂ 64, and the one that was just made
    for k, path in enumerate(files):
        if k in lost:
            path.write_bytes(path.read_bytes()[:-1])
    found = summed(layer.in_blocks(Blocks(store=Store(folder, {"a": 1}))), "rows", Rows, chunk)
    assert found.total.tolist() == wanted
    assert summed(layer, "rows", Rows, chunk).total.tolist() == wanted


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_blocks_score_as_one_go_does(tmp_path, head, ridge):
    x, z, y = arrays(head)
    layer = LastLayer(x, z, y, head, ridge, sample_weight=np.linspace(0, 2, 60), penalize_bias=False)
    plain, facts = score_with_diagnostics(layer)
    blocks, same = score_with_diagnostics(layer, store=tmp_path)
    close(blocks, plain)
    for name, value in vars(facts).items():
        assert getattr(same, name) == (pytest.approx(value, rel=1e-8) if isinstance(value, float) else value), name
    again = score(layer, store=tmp_path)
    pd.testing.assert_frame_equal(again, blocks, check_exact=True)


def test_a_score_of_ones_own_that_has_changed_is_not_taken_from_the_store(tmp_path, monkeypatch):
    layer = LastLayer(*arrays(), "softmax", 1.0)

    def of(times):
        return lambda known: times * known.leverages.leverage

    def kept(times):
        monkeypatch.setitem(SCORES, "mine", Score(of(times), frozenset({"curvature"}), default=False, per_output=True))
        return score(layer, ["mine"], store=tmp_path)["mine"]

    once = kept(1.0)
    pd.testing.assert_series_equal(kept(1.0), once, check_exact=True)  # another function that does the same
    with pytest.raises(InputError, match="is of a run with other scores; use another folder"):
        kept(5.0)


def test_a_score_of_what_else_a_trace_holds_is_not_taken_from_the_store_of_another(tmp_path, monkeypatch):
    def highest(known):
        return known.losses.values[:, known.records.rows].amax(0)

    monkeypatch.setitem(SCORES, "highest", Score(highest, frozenset({"losses"}), default=False))
    layer = LastLayer(*arrays(), "softmax", 1.0)
    losses = np.tile(np.array([0.0, 0, 1, 1, 2, 2, 3, 3, 4])[:, None], 60)
    other = losses.copy()
    other[0], other[8] = -1.0, 5.0  # the same mean, the same quartiles
    np.testing.assert_array_equal(score(layer, ["trace_iqr"], other), score(layer, ["trace_iqr"], losses))
    assert (score(layer, ["highest"], losses, store=tmp_path)["highest"] == 4.0).all()
    assert (score(layer, ["highest"], Trace.from_losses(losses), store=tmp_path)["highest"] == 4.0).all()
    with pytest.raises(InputError, match="is of a run with another trace; use another folder"):
        score(layer, ["highest"], other, store=tmp_path)


def test_a_curvature_of_ones_own_goes_through_blocks_where_it_says_so(tmp_path, monkeypatch):
    layer = LastLayer(*arrays(), "softmax", 1.0)
    own = replace(CURVATURES["dense"], auto=False)
    monkeypatch.setitem(CURVATURES, "own", own)
    blocks = score(layer, ["newton"], curvature="own", store=tmp_path / "own")
    pd.testing.assert_frame_equal(blocks, score(layer, ["newton"], store=tmp_path / "dense"), check_exact=True)
    monkeypatch.setitem(CURVATURES, "own", replace(own, blocks=False, checked=False))
    for name, value in (("store", tmp_path / "other"), ("engine", "ray")):
        with pytest.raises(InputError, match=f"{name}: it is for the exact Hessian, .* has curvature='own'"):
            score(layer, ["newton"], curvature="own", **{name: value})


def test_traces_flags_and_the_full_step_go_through_blocks(tmp_path):
    x, z, y = arrays("squared", m=1)
    x[41] = 1e6  # leverage 1
    layer = LastLayer(x, z[:, 0], y, "squared")
    trace = np.random.default_rng(0).random((4, 60))
    plain, facts = score_with_diagnostics(layer, trace=trace, full_step=True)
    blocks, same = score_with_diagnostics(layer, trace=trace, full_step=True, store=tmp_path)
    close(blocks.drop(41), plain.drop(41))
    pd.testing.assert_frame_equal(blocks.loc[[41]], plain.loc[[41]], rtol=1e-8)  # of 1 − h half the digits are left
    assert facts.flagged == same.flagged
    with pytest.raises(InputError, match="is of a run with another trace"):
        score(layer, trace=trace + 1, full_step=True, store=tmp_path)
    outputs = np.random.default_rng(1).normal(size=(3, 60, 1))
    close(
        score(layer, trace=Trace.from_outputs(outputs), store=tmp_path / "b"),
        score(layer, trace=Trace.from_outputs(outputs)),
    )


def test_a_layer_at_other_outputs_has_passes_of_its_own(tmp_path):
    x, z, y = arrays()
    layer, store = LastLayer(x, z, y, ridge=1.0), Store(tmp_path, {})
    other = torch.from_numpy(z[::-1].copy())
    in_blocks = layer.in_blocks(Blocks(store=store))
    for place, kept in ((layer, in_blocks), (layer.at(other), in_blocks.at(other))):
        plain, blocks = build_curvature(place), build_curvature(kept)
        assert blocks.stationarity.decrement == pytest.approx(plain.stationarity.decrement, rel=1e-10)
        assert torch.allclose(blocks._inverses[0], plain._inverses[0], rtol=1e-9, atol=1e-12)


class Stops(Exception):
    pass


def test_a_run_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    """Wherever it stopped: in the first pass, the second or the third, the rest is done and the bits are the same."""
    named = arrays()
    layer = LastLayer.open(write(tmp_path / "layer", "npy", *named), ridge=0.5)
    undisturbed = score(layer, store=tmp_path / "undisturbed")
    close(undisturbed, score(layer))
    read, reads = type(layer.source).read, 0

    def counted(self, rows, limit=None):
        nonlocal reads
        reads += 1
        if limit is not None and reads > limit:
            raise Stops
        return read(self, rows)

    monkeypatch.setattr(type(layer.source), "read", counted)
    score(layer, store=tmp_path / "whole")
    whole = reads
    for limit in np.linspace(1, whole - 1, 7).astype(int):
        reads, folder = 0, tmp_path / f"{limit}"
        monkeypatch.setattr(type(layer.source), "read", partial_method(counted, limit))
        with pytest.raises(Stops):
            score(layer, store=folder)
        reads = 0
        monkeypatch.setattr(type(layer.source), "read", counted)
        pd.testing.assert_frame_equal(score(layer, store=folder), undisturbed, check_exact=True)
        assert reads <= whole - max(0, limit - 3)  # the digest of the records is taken again, and a block


def partial_method(function, limit):
    return lambda self, rows: function(self, rows, limit)


def test_what_was_kept_for_other_blocks_is_not_taken(tmp_path, monkeypatch):
    """Of a version with other chunks: the same names would stand for other records."""
    layer = LastLayer(*arrays(), ridge=0.5)
    score(layer, store=tmp_path)
    monkeypatch.setattr(dense, "_CHUNK_BYTES", 3 * 8 * 6)
    close(score(layer, store=tmp_path), score(layer))
    for path in tmp_path.glob("scores-*"):
        path.unlink()
    close(score(layer, store=tmp_path), score(layer))


def test_another_memory_goes_on_where_chunks_are_as_large(tmp_path, monkeypatch):
    layer, kept = LastLayer(*arrays(), ridge=0.5), []
    whole = score(layer, memory=2.0, store=tmp_path)
    keep = Store.keep
    monkeypatch.setattr(Store, "keep", lambda self, name, arrays: (kept.append(name), keep(self, name, arrays)))
    pd.testing.assert_frame_equal(score(layer, memory=1.0, store=tmp_path), whole, check_exact=True)
    assert not kept  # nothing was done again
    monkeypatch.setattr(dense, "_chunk_rows", lambda layer, width, memory: 10 if memory < 0.5 else 20)
    close(score(layer, memory=0.1, store=tmp_path), whole)
    assert any(name.startswith("hessian") for name in kept)
    assert any(name.startswith("scores") for name in kept)


def test_chunks_of_another_size_are_not_taken_for_these_though_blocks_are_as_large(tmp_path):
    layer = LastLayer(*arrays(), ridge=0.5)
    held = layer.in_blocks(Blocks(store=Store(tmp_path, {})))
    assert held.blocks is not None
    for chunk, value in ((layer.n, 1.0), (2 * layer.n, 2.0)):  # one block of all records either way
        job = partial(lambda _, value: {"sum": torch.tensor([value])}, value=value)
        assert held.blocks.added(held, "pass", job, chunk, lambda _: None)["sum"].item() == value


def test_a_kept_block_that_goes_while_others_are_computed_shifts_nothing(tmp_path):
    layer = LastLayer(*arrays(), ridge=0.5)
    store = Store(tmp_path, {})
    held = layer.in_blocks(Blocks(store=store))
    assert held.blocks is not None

    def first(window):
        return {"first": torch.tensor([window.covered.start])}

    for _ in held.blocks.mapped(held, "pass", first, 10):
        pass
    files = sorted(tmp_path.glob("pass-*"))
    assert len(files) == 6
    files[4].unlink()
    found = []
    for rows, parts in held.blocks.mapped(held, "pass", first, 10):
        for file in files[1:4]:  # after the store was asked
            file.unlink(missing_ok=True)
        found.append((rows.start, int(parts["first"])))
    assert found == [(start, start) for start in range(0, 60, 10)]


def test_a_killed_process_goes_on(tmp_path):
    named = arrays(n=400)
    path = write(tmp_path / "layer", "npy", *named)
    script = (
        "import os, signal, sys\n"
        "from noshadow import LastLayer, score\n"
        "from noshadow.curvature import dense\n"
        "from noshadow.passes import store\n"
        "dense._CHUNK_BYTES = 7 * 8 * 6; dense.most_records = lambda k, r: None\n"
        "keep, kept = store.Store.keep, []\n"
        "def dies(self, name, arrays):\n"
        "    keep(self, name, arrays); kept.append(name)\n"
        "    if name.startswith('hessian') and sum(n.startswith('hessian') for n in kept) > 30:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "store.Store.keep = dies\n"
        "score(LastLayer.open(sys.argv[1], ridge=0.5), store=sys.argv[2])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path, tmp_path / "store"], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    layer = LastLayer.open(path, ridge=0.5)
    resumed = score(layer, store=tmp_path / "store")
    pd.testing.assert_frame_equal(resumed, score(layer, store=tmp_path / "anew"), check_exact=True)
    close(resumed, score(layer))


def test_a_manifest_that_was_being_written_is_not_another_file(tmp_path):
    """By a process that was killed just then, or by one that started at the same time."""
    x, z, y = arrays()
    (tmp_path / ".run.json.0123456789ab.partial").touch()
    assert len(score(LastLayer(x, z, y, ridge=0.5), store=tmp_path)) == len(x)


def test_what_is_damaged_is_done_again(tmp_path):
    layer = LastLayer(*arrays(), ridge=0.5)
    first = score(layer, store=tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 8]))
    pd.testing.assert_frame_equal(score(layer, store=tmp_path), first, check_exact=True)
    for path in tmp_path.glob("scores-*"):
        path.write_bytes(b"")
    pd.testing.assert_frame_equal(score(layer, store=tmp_path), first, check_exact=True)
    assert all(os.stat(path).st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_a_store_of_something_else_is_refused(tmp_path):
    x, z, y = arrays()
    score(LastLayer(x, z, y, ridge=0.5), store=tmp_path)
    for position in (0, 1):
        changed = [x.copy(), z.copy(), y]
        changed[position][59, 0] += 1e-3
        with pytest.raises(InputError, match="is of a run with other records; use another folder"):
            score(LastLayer(*changed, ridge=0.5), store=tmp_path)
    with pytest.raises(InputError, match="is of a run with other records"):
        score(LastLayer(x, z, y, ridge=0.5, sample_weight=np.full(len(x), 2.0)), store=tmp_path)
    with pytest.raises(InputError, match="is of a run with other records"):  # the same numbers of another precision
        score(LastLayer(x.astype(np.float64), z, y, ridge=0.5), store=tmp_path)
    cases = {
        "bias": lambda: score(LastLayer(x, z, y, ridge=0.5, bias=False), store=tmp_path),
        "label_smoothing": lambda: score(LastLayer(x, z, y, ridge=0.5, label_smoothing=0.1), store=tmp_path),
        "ridge": lambda: score(LastLayer(x, z, y, ridge=0.6), store=tmp_path),
        "penalize_bias": lambda: score(LastLayer(x, z, y, ridge=0.5, penalize_bias=False), store=tmp_path),
        "coefficients": lambda: score(LastLayer(x, z, y, ridge=0.5, coefficients=np.ones((5, 3))), store=tmp_path),
        "class_weight": lambda: score(LastLayer(x, z, y, ridge=0.5, class_weight=[1, 2, 3]), store=tmp_path),
        "scores": lambda: score(LastLayer(x, z, y, ridge=0.5), ["loss"], store=tmp_path),
        "full_step": lambda: score(LastLayer(x, z, y, ridge=0.5), full_step=True, store=tmp_path),
    }
    for name, case in cases.items():
        what = f"other {name}" if name in ("coefficients", "scores") else f"another {name}"
        with pytest.raises(InputError, match=f"is of a run with {what};"):
            case()
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match="is damaged; remove the folder"):
        score(LastLayer(x, z, y, ridge=0.5), store=tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("a")
    with pytest.raises(InputError, match="holds other files"):
        score(LastLayer(x, z, y), store=tmp_path / "mine")


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    layer, sync, calls = LastLayer(*arrays(), ridge=0.5), os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > 12:
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"store: .* written \(No space left on device\); all that was kept"):
        score(layer, store=tmp_path)
    monkeypatch.setattr("os.fsync", sync)
    close(score(layer, store=tmp_path), score(layer))


def test_an_audit_goes_through_a_store(tmp_path):
    layer = LastLayer(*arrays(), ridge=0.5)
    close(audit(layer, store=tmp_path).table.drop(columns="flagged"), audit(layer).table.drop(columns="flagged"))
    assert list(tmp_path.glob("scores-*"))
    with pytest.raises(InputError, match="engine: 'spark'"):
        audit(layer, engine="spark")


def test_engines_are_named():
    layer = LastLayer(*arrays())
    with pytest.raises(InputError, match="engine: 'spark' is not one of 'local', 'ray'"):
        score(layer, engine="spark")
    with pytest.raises(InputError, match="address: it is that of a Ray cluster"):
        score(layer, address="10.0.0.1:6379")
    pd.testing.assert_frame_equal(score(layer, engine="local"), score(layer), check_exact=True)


def test_the_tree_has_one_shape():
    """Sums of numbers that rounding tells apart: by hand, in pairs of pairs, against what blocks give."""
    values = torch.tensor(np.random.default_rng(0).normal(size=11) * 10.0 ** np.arange(-5, 6))
    layer = LastLayer(np.ones((11, 1)), np.zeros(11), np.zeros(11), "squared")
    added = Blocks().added(layer, "a", lambda one: {"v": values[one.covered].sum()}, 1, lambda _: None)["v"]
    v = list(values)
    by_hand = (((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))) + ((v[8] + v[9]) + v[10])
    assert float(added) == float(by_hand)
