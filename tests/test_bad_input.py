"""Bad input: a clear error that names the argument and the row, or a documented answer; never a silent NaN."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from noshadow import InputError, LastLayer, NoshadowWarning, score
from noshadow.scoring import score_with_diagnostics


def arrays(n=30, p=3, m=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    return x, x @ rng.normal(size=(p, m)), rng.integers(0, m, n)


def finite(layer):
    """The scores, all finite but for the power of records that are told for certain."""
    frame = score(layer)
    flagged = np.isin(np.arange(layer.n), score_with_diagnostics(layer)[1].certain)
    if "attack_power" in frame:
        assert (np.isinf(frame["attack_power"]) == flagged).all()
        assert (frame.loc[flagged, ["attack_accuracy", "attack_tpr"]] == 1.0).all(axis=None)
    assert np.isfinite(frame.drop(columns="attack_power", errors="ignore").to_numpy()).all()
    return frame


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "position"), [("features", 0), ("outputs", 1)])
def test_not_finite_names_the_argument_and_the_rows(bad, name, position):
    values = list(arrays())
    values[position] = values[position].copy()
    values[position][[4, 9], 1] = bad
    with pytest.raises(InputError, match=rf"{name}: NaN or infinite in rows 4, 9 \(counted from 0\)"):
        LastLayer(*values)


def test_targets_out_of_range_name_the_row():
    x, z, y = arrays()
    y[7] = 3
    with pytest.raises(InputError, match=r"targets: expected classes 0 … 2, got 3 in row 7"):
        LastLayer(x, z, y)
    y[7] = -1
    with pytest.raises(InputError, match=r"got -1 in row 7"):
        LastLayer(x, z, y)
    with pytest.raises(InputError, match=r"map −1 to 0"):
        LastLayer(x, z[:, 0], np.where(y == 0, -1, 1), "logistic")
    with pytest.raises(InputError, match=r"got 0.5 in rows 0, 1"):
        LastLayer(x, z, np.full(30, 0.5))
    with pytest.raises(InputError, match=r"targets: NaN or infinite in row 2 "):
        LastLayer(x, z[:, 0], np.where(np.arange(30) == 2, np.nan, 0.0), "squared")


def test_shapes_are_checked():
    x, z, y = arrays()
    with pytest.raises(InputError, match=r"features: expected shape \(n, p\), got \(30,\)"):
        LastLayer(x[:, 0], z, y)
    with pytest.raises(InputError, match=r"outputs: 29 rows, but features has 30"):
        LastLayer(x, z[1:], y)
    with pytest.raises(InputError, match=r"targets: 29 rows"):
        LastLayer(x, z, y[1:])
    with pytest.raises(InputError, match=r"targets: 3 logistic outputs need .* \(n, 3\), got \(30, 1\)"):
        LastLayer(x, z, y, "logistic")
    with pytest.raises(InputError, match=r"outputs: a softmax head .* use head='logistic'"):
        LastLayer(x, z[:, :1], y)
    with pytest.raises(InputError, match=r"targets: 1 value per record, but outputs has 3"):
        LastLayer(x, z, y, "squared")
    with pytest.raises(InputError, match=r"features: there are no rows"):
        LastLayer(x[:0], z[:0], y[:0])
    with pytest.raises(InputError, match=r"features: there are no columns and no bias"):
        LastLayer(x[:, :0], z, y, bias=False)
    with pytest.raises(InputError, match=r"head: 'hinge' is not a head"):
        LastLayer(x, z, y, "hinge")
    with pytest.raises(InputError, match=r"features: expected numbers"):
        LastLayer([["a"]] * 30, z, y)
    with pytest.raises(InputError, match=r"^targets: expected numbers, got text; number the classes 0, 1"):
        LastLayer(x, z, ["cat"] * 30)
    with pytest.raises(InputError, match=r"^targets: expected numbers, got list"):
        LastLayer(x, z, [[0.0], [0.0, 1.0]])
    for ridge in (-1.0, np.nan, np.inf, "much"):
        with pytest.raises(InputError, match=r"ridge: expected a finite number ≥ 0"):
            LastLayer(x, z, y, ridge=ridge)


def test_unknown_scores_are_named():
    x, z, y = arrays()
    with pytest.raises(InputError, match=r"scores: 'risk' is not a score; use one of loss"):
        score(LastLayer(x, z, y), ["risk"])
    with pytest.raises(InputError, match=r"scores: 'entropy' needs class probabilities"):
        score(LastLayer(x, z[:, 0], y, "squared"), ["entropy"])
    with pytest.raises(InputError, match=r"scores: the list is empty"):
        score(LastLayer(x, z, y), [])


def test_traces_are_checked():
    layer = LastLayer(*arrays())
    trace = np.ones((5, 30))
    cases = {
        r"trace: expected shape \(epochs, n\), a row per epoch, got \(30,\)": trace[0],
        r"trace: expected shape \(epochs, n\), a row per epoch, got \(5, 30, 1\)": trace[:, :, None],
        r"trace: expected shape \(epochs, 30\), .* got \(30, 5\); it looks transposed: pass trace.T": trace.T,
        r"trace: expected shape \(epochs, 30\), .* got \(5, 29\); pass the same records in the same": trace[:, 1:],
        r"trace: a spread needs at least 2 epochs, got shape \(1, 30\)": trace[:1],
        r"trace: a spread needs at least 2 epochs, got shape \(0, 30\)": trace[:0],
        r"trace: expected numbers, got list": [["a"] * 30] * 2,
        r"trace: expected numbers, got list ": [[1.0] * 30, [1.0] * 29],
        r"trace: expected real numbers": trace * 1j,
        r"trace: state dicts are passed as noshadow.Trace.from_checkpoints": [{"weight": trace}, {"weight": trace}],
        r"trace: state dicts .*from_checkpoints\(model, state_dicts, data\)$": {"weight": trace},
        r"trace: mean_trace overflows in rows 0, 1, 2, 3, 4 and 25 more .* rescale the losses": trace * 1e308,
    }
    for message, bad in cases.items():
        with pytest.raises(InputError, match=message):
            score(layer, trace=bad)
    with pytest.raises(InputError, match="it looks transposed"):  # checked even where no score asks for it
        score(layer, ["loss"], trace.T)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_trace_that_is_not_finite_names_the_records_and_the_epoch(bad):
    trace = np.ones((5, 30))
    trace[3, [4, 9]] = trace[4, 4] = bad
    message = r"trace: NaN or infinite for rows 4, 9 of the layer \(counted from 0\), first in epoch 3; leave out"
    with pytest.raises(InputError, match=message):
        score(LastLayer(*arrays()), trace=trace)


def test_a_class_without_a_sample_is_fine():
    x, z, y = arrays()
    y[y == 2] = 0
    finite(LastLayer(x, z, y))
    finite(LastLayer(x, z[:, 0], np.zeros(30, int), "logistic"))


@pytest.mark.parametrize("head", ["squared", "logistic", "softmax"])
@pytest.mark.parametrize(("n", "p"), [(1, 1), (1, 3), (2, 5), (30, 1), (5, 40)])
def test_few_records_and_few_or_many_features(head, n, p):
    rng = np.random.default_rng(0)
    m = 3 if head == "softmax" else 1
    x = rng.normal(size=(n, p))
    z = x @ rng.normal(size=(p, m))
    y = rng.normal(size=(n, 1)) if head == "squared" else rng.integers(0, max(m, 2), n)
    layer = LastLayer(x, z, y, head)
    frame = finite(layer)
    if n <= p:
        # every record is fitted alone: leverage 1 for all outputs, flagged as fully exposed
        assert score_with_diagnostics(layer)[1].flagged == tuple(range(n))
        np.testing.assert_allclose(frame["leverage"], m - 1 if head == "softmax" else 1, rtol=1e-6)
        with pytest.warns(NoshadowWarning, match="leverage is 1"):
            score(layer)


def test_zero_constant_and_duplicated_data():
    x, z, y = arrays()
    finite(LastLayer(np.zeros_like(x), np.zeros_like(z), y))
    finite(LastLayer(np.ones_like(x), np.ones_like(z), y))
    with pytest.warns(NoshadowWarning, match="not a linear function"):
        finite(LastLayer(np.zeros_like(x), z, y))
    finite(LastLayer(np.repeat(x[:3], 10, 0), np.repeat(z[:3], 10, 0), np.repeat(y[:3], 10, 0)))
    finite(LastLayer(np.zeros_like(x), np.zeros_like(z), y, bias=False))


def test_leverage_one_is_finite_and_flagged():
    x = np.zeros((20, 2))
    x[:, 0] = np.linspace(-1, 1, 20)
    x[0, 1] = 5.0  # the only record with this feature
    y = np.random.default_rng(0).normal(size=20)
    design = np.hstack([x, np.ones((20, 1))])
    z = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    layer = LastLayer(x, z, y, "squared")
    assert score_with_diagnostics(layer)[1].flagged == (0,)
    with pytest.warns(NoshadowWarning, match=r"row 0: leverage is 1, .* fully exposed"):
        frame = score(layer)
    assert frame["leverage"][0] == pytest.approx(1.0)
    assert np.isinf(finite(layer)["attack_power"]).tolist() == [True, *[False] * 19]


@pytest.mark.parametrize("scale", [20.0, 500.0, 1e4, 1e6])
@pytest.mark.parametrize("head", ["logistic", "softmax"])
def test_perfectly_separated_data_without_ridge(head, scale):
    x = np.linspace(-1, 1, 41)[:, None]
    z = scale * x if head == "logistic" else np.hstack([-scale * x, scale * x, np.zeros_like(x)])
    y = (x[:, 0] > 0).astype(int)
    layer = LastLayer(x, z, y, head)
    finite(layer)
    if scale == 1e6:  # the weights underflow: only the record in the middle still has any
        with pytest.warns(NoshadowWarning, match="no curvature along .* perfectly separated"):
            score(layer)


def test_probabilities_in_the_place_of_logits_are_noticed():
    x, z, y = arrays()
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    with pytest.warns(NoshadowWarning, match=r"look like probabilities .*rows sum to 1"):
        LastLayer(x, p, y)
    with pytest.warns(NoshadowWarning, match=r"look like probabilities"):
        LastLayer(x, p[:, 0], y > 0, "logistic")


def test_outputs_of_another_layer_are_noticed():
    x, z, y = arrays()
    with pytest.warns(NoshadowWarning, match="not a linear function of the features"):
        score(LastLayer(x, z[::-1].copy(), y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_precision_gives_scores_to_that_precision(dtype):
    x, z, y = arrays(n=200)
    exact = finite(LastLayer(x, z, y))
    rounded = finite(LastLayer(torch.from_numpy(x).to(dtype), torch.from_numpy(z).to(dtype), y))
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 0.2, torch.float32: 2e-5, torch.float64: 1e-12}[dtype]
    np.testing.assert_allclose(rounded["influence"], exact["influence"], rtol=tolerance, atol=tolerance * 1e-2)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "uint64"])
def test_unsigned_integers_are_numbers_like_others(kind):
    """Of more than 8 bits torch does not compare them."""
    x, z, y = arrays()
    want = score(LastLayer(np.round(4 + x), z, y))
    for labels in (y.astype(kind), torch.from_numpy(y.astype(kind))):
        found = score(LastLayer(np.round(4 + x).astype(kind), z, labels))
        pd.testing.assert_frame_equal(found, want)
    large = np.array([[2**63], [2**64 - 1], [5]], dtype=np.uint64)
    assert LastLayer(large, z[:3], y[:3]).features.tolist() == [[2.0**63], [2.0**64], [5.0]]


@pytest.mark.parametrize(("kind", "classes"), [("uint8", 300), ("uint8", 256), ("int8", 200)])
@pytest.mark.parametrize("head", ["softmax", "logistic"])
def test_more_classes_than_the_type_of_labels_can_count(kind, classes, head):
    """The number of classes does not fit in 8 bits: 300 was taken for 44, and class 100 refused."""
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(90, classes)), np.arange(90)
    if head == "logistic":
        y = (rng.random((90, classes)) < 0.5).astype(int)
    found = score(LastLayer(z[:, :2], z, y.astype(kind), head), ["loss"])
    pd.testing.assert_frame_equal(found, score(LastLayer(z[:, :2], z, y, head), ["loss"]))
    y[7] = -1
    if kind == "int8":
        with pytest.raises(InputError, match=r"^targets: expected classes 0 .* got -1 in row 7 "):
            LastLayer(z[:, :2], z, y.astype(kind), head)


def test_strides_frames_lists_and_gradients_are_all_arrays():
    x, z, y = arrays()
    want = score(LastLayer(x, z, y))
    variants = [
        (np.asfortranarray(x), z[:, ::1], y),
        (x[::-1][::-1], np.repeat(z, 2, 1)[:, ::2], np.repeat(y, 2)[::2]),
        (pd.DataFrame(x), pd.DataFrame(z), pd.Series(y)),
        (x.tolist(), z.tolist(), y.tolist()),
        (torch.from_numpy(x).T.contiguous().T.requires_grad_(), torch.from_numpy(z), torch.from_numpy(y)),
        (x.astype(">f8"), z, y.astype(np.int8)),
    ]
    for variant in variants:
        pd.testing.assert_frame_equal(score(LastLayer(*variant)), want, rtol=1e-10)
    read_only = x.copy()
    read_only.flags.writeable = False
    pd.testing.assert_frame_equal(score(LastLayer(read_only, z, y)), want, rtol=1e-10)


def test_masked_and_complex_entries_are_refused_and_not_dropped():
    x, z, y = np.eye(3), np.zeros((3, 2)), np.array([0, 1, 0])
    with pytest.raises(InputError, match="features: some entries are masked"):
        LastLayer(np.ma.masked_greater(x, 0.5), z, y)
    assert LastLayer(np.ma.masked_array(x), z, y).n == 3
    for values in (x * 1j, sparse.csr_matrix(x * 1j), torch.tensor(x * 1j).to_sparse()):
        with pytest.raises(InputError, match=r"features: expected real numbers, got torch\.complex128"):
            LastLayer(values, z, y)


def counted_from_one(form):
    """A sparse table whose columns are counted from 1, as files of LIBSVM have them: its libraries take it as it is."""
    table = sparse.csr_matrix(np.eye(6)[:, :4] + np.eye(6)[:, ::-1][:, :4])
    rows, columns, values = np.repeat(np.arange(6), np.diff(table.indptr)), table.indices + 1, table.data
    if form == "scipy csr":
        return sparse.csr_matrix((values, columns, table.indptr), shape=(6, 4))
    if form == "scipy csc":
        return sparse.csr_matrix((values, columns, table.indptr), shape=(6, 4)).T
    if form == "torch csr":
        crow = torch.tensor(table.indptr)
        return torch.sparse_csr_tensor(
            crow, torch.tensor(columns), torch.tensor(values), (6, 4), check_invariants=False
        )
    places = torch.tensor(np.stack((rows, columns)))
    return torch.sparse_coo_tensor(places, torch.tensor(values), (6, 4), check_invariants=False)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (
            "scipy csr",
            r"features: an entry in rows 2, 3 \(counted from 0\) .* has number 4 among its 4 columns",
        ),
        ("scipy csc", r"features: an entry in the sparse table has number 4 among its 4 rows, .* subtract 1"),
        (
            "torch csr",
            r"features: an entry in rows 2, 3 \(counted from 0\) .* has number 4 among its 4 columns",
        ),
        (
            "torch coo",
            r"features: an entry in rows 2, 3 \(counted from 0\) .* has number 4 among its 4 columns",
        ),
    ],
)
def test_sparse_entries_outside_of_the_table_are_refused_not_read(form, message):
    """Products would read the memory beside the table: numbers that mean nothing, or the end of the process."""
    x = counted_from_one(form)
    with pytest.raises(InputError, match=message):
        LastLayer(x, np.zeros((x.shape[0], 2)), np.arange(x.shape[0]) % 2)


def test_starts_of_sparse_rows_that_do_not_rise_are_refused():
    table = sparse.csr_matrix(np.eye(6)[:, :4])
    table.indptr[2] = 5
    crow, columns = torch.tensor(table.indptr), torch.tensor(table.indices)
    both = torch.sparse_csr_tensor(crow, columns, torch.tensor(table.data), (6, 4), check_invariants=False)
    for x in (table, both):
        with pytest.raises(InputError, match=r"^features: the starts of its sparse rows do not rise from 0"):
            LastLayer(x, np.zeros((6, 2)), np.arange(6) % 2)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tables_of_blocks_and_of_some_rows_are_the_dense_ones():
    x = np.random.default_rng(0).normal(size=(6, 4)) * (np.arange(24).reshape(6, 4) % 3 > 0)
    dense = torch.tensor(x)
    tables = (dense.to_sparse_bsr((2, 2)), dense.to_sparse_bsc((3, 2)), dense.to_sparse(1), dense.to_sparse_csc())
    for table in (*tables, sparse.bsr_matrix(x, blocksize=(3, 2))):
        layer = LastLayer(table, np.zeros((6, 2)), np.arange(6) % 2)
        np.testing.assert_array_equal(layer.records(slice(0, 6)).design.numpy()[:, :4], x)


def test_sparse_outputs_and_targets_are_refused_with_the_remedy():
    x, z, hot = np.eye(4), np.eye(4)[:, :2] * 2.0, np.eye(2)[[0, 1, 0, 1]]
    for table, remedy in ((sparse.csr_matrix, "toarray"), (lambda array: torch.tensor(array).to_sparse(), "to_dense")):
        with pytest.raises(InputError, match=rf"^outputs: expected a dense array, got .* pass outputs\.{remedy}\(\)"):
            LastLayer(x, table(z), [0, 1, 0, 1])
        with pytest.raises(InputError, match=rf"^targets: expected a dense array, got .* pass targets\.{remedy}\(\)"):
            LastLayer(x, z, table(hot))


def test_sparse_tables_of_any_number_become_floats():
    x, z, y = np.eye(3), np.zeros((3, 2)), np.array([0, 1, 0])
    whole = torch.eye(3, dtype=torch.int64).to_sparse()
    for values in (whole, sparse.csr_matrix(x.astype(np.longdouble)), sparse.csr_matrix(x.astype(bool))):
        layer = LastLayer(values, z, y, ridge=1.0)
        assert (layer.sparse, layer.precision) == (True, torch.float64)
        np.testing.assert_allclose(score(layer), score(LastLayer(x, z, y, ridge=1.0)), rtol=1e-9, atol=1e-12)


def test_tensors_of_other_devices_come_to_one_that_has_double_precision(monkeypatch):
    """No accelerator here: a meta tensor that hands over its values stands for one without float64."""
    from noshadow.tensors import as_tensor

    x = torch.arange(8.0).reshape(4, 2)

    class Elsewhere(torch.Tensor):
        @property
        def device(self):
            return torch.device("mps")

        def detach(self):
            return self

        def cpu(self):
            return x

    assert as_tensor(torch.Tensor._make_subclass(Elsewhere, torch.zeros(4, 2)), "features") is x


def test_numbers_at_the_end_of_the_range():
    x, z, y = arrays()
    want = score(LastLayer(x, z, y), ["leverage", "newton"])
    for scale in (1e-200, 1e150):
        got = score(LastLayer(x * scale, z, y), ["leverage", "newton"])
        np.testing.assert_allclose(got, want, rtol=1e-9)
    with pytest.raises(InputError, match=r"loss overflows in rows 0, 1, 2, 3, 4 and 25 more"):
        score(LastLayer(x, np.full(30, 1e200), np.zeros(30), "squared"), ["loss"])


def test_a_layer_cannot_be_changed():
    layer = LastLayer(*arrays())
    with pytest.raises(AttributeError):
        layer.ridge = 3.0
    assert "n=30, p=3, m=3, head='softmax'" in repr(layer)
