"""Audit: the table, the most exposed, what is saved, what is shown."""

from __future__ import annotations

import io
import json
import warnings

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPClassifier

from noshadow import InputError, LastLayer, NoshadowWarning, Trace, __version__, audit, last_layer, score
from noshadow.scores import SCORES


@pytest.fixture
def result():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    y = rng.integers(0, 3, 200)
    return audit(LastLayer(x, x @ rng.normal(size=(4, 3)), y, ridge=0.5), ids=[f"<b>{i}</b>" for i in range(200)])


def test_top_is_sorted_and_counts_shares_and_numbers(result):
    ranked = result.table["exposure"].sort_values(ascending=False).to_numpy()
    for share, count in ((0.01, 2), (0.5, 100), (7, 7), (1, 1), (1.0, 200), (0.0001, 1)):
        top = result.top(share)
        assert len(top) == count
        np.testing.assert_array_equal(top["exposure"], ranked[:count])
    for bad in (0, -1, 1.5, 201, True, float("nan")):
        with pytest.raises(InputError, match="top:"):
            result.top(bad)


def test_flagged_records_come_first():
    x = np.zeros((20, 2))
    x[:, 0] = np.linspace(-1, 1, 20)
    x[11, 1] = 5.0
    y = np.random.default_rng(0).normal(size=20)
    design = np.hstack([x, np.ones((20, 1))])
    result = audit(LastLayer(x, design @ np.linalg.lstsq(design, y, rcond=None)[0], y, "squared"))
    assert result.top(1)["id"].item() == 11
    assert result.metadata["flagged"] == 1
    assert any("row 11" in note for note in result.notes)


def test_saved_tables_carry_their_metadata(result, tmp_path):
    path = result.save(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(path), result.table)
    facts = json.loads(pq.read_schema(path).metadata[b"noshadow"])
    wanted = {"noshadow": __version__, "head": "softmax", "records": 200, "features": 4, "outputs": 3, "ridge": 0.5}
    assert wanted.items() <= facts.items()
    assert facts["stationarity"] == pytest.approx(result.metadata["stationarity"])
    assert facts["date"].startswith("20")
    path = result.save(tmp_path / "a.csv")
    pd.testing.assert_frame_equal(pd.read_csv(path), result.table, rtol=1e-12)
    assert json.loads((tmp_path / "a.csv.json").read_text(encoding="utf-8"))["head"] == "softmax"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.csv.json", "a.parquet"]
    with pytest.raises(InputError, match=r"must end in .parquet or .csv"):
        result.save(tmp_path / "a.xlsx")
    with pytest.raises(InputError, match=r"does not exist"):
        result.save(tmp_path / "no" / "a.csv")


def test_what_people_see(result):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(result)
    text = console.export_text()
    assert "200 records, softmax head, 4 features × 3 outputs" in text
    assert str(result.top(1)["id"].item()) in text
    html = result._repr_html_()
    top = result.top(1)["id"].item()  # ids are the users' own text
    assert top not in html
    assert top.replace("<", "&lt;").replace(">", "&gt;") in html
    first, *hints = repr(result).splitlines()
    assert first == "Audit(200 records, softmax head, ranked by 'exposure')"
    assert any("Record a noshadow.Trace while training" in hint for hint in hints)


def test_ids_and_targets():
    x = np.random.default_rng(0).normal(size=(10, 2))
    layer = LastLayer(x, x, x, "squared")
    assert list(audit(layer).table.columns[:3]) == ["id", "target_0", "target_1"]
    with pytest.raises(InputError, match="ids: 2 names for 10 records"):
        audit(layer, ids=["a", "b"])
    with pytest.raises(InputError, match="ids: the same name in rows 0, 1, 2, 3, 4 and 5 more"):
        audit(layer, ids=["a"] * 10)
    for name, value in {"data": (x, x), "head": "squared", "ridge": 1.0}.items():
        with pytest.raises(InputError, match=f"{name}: a LastLayer already holds it"):
            audit(layer, **{name: value})


def test_only_the_wanted_scores(result):
    x = np.random.default_rng(0).normal(size=(10, 2))
    layer = LastLayer(x, x, np.arange(10) % 2)
    table = audit(layer, scores=["loss", "output_gradient_norm"]).table
    assert list(table.columns) == ["id", "target", "nearest_class", "loss", "output_gradient_norm", "flagged"]


def texts(caught, category):
    return [str(one.message) for one in caught if one.category is category]


def test_what_a_front_door_warns_of_is_noted_saved_and_said_once(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 3)), rng.integers(0, 3, 120)
    model = MLPClassifier((4,), early_stopping=True, n_iter_no_change=2, max_iter=30, random_state=0).fit(x, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = audit(model, (x, y))
    said = [message for message in texts(caught, NoshadowWarning) if "early_stopping" in message]
    assert len(said) == 1
    assert said[0] in result.notes
    assert sorted(texts(caught, NoshadowWarning)) == sorted(result.notes)
    facts = json.loads(pq.read_schema(result.save(tmp_path / "a.parquet")).metadata[b"noshadow"])
    assert facts["notes"] == list(result.notes)


def test_what_a_layer_warned_of_is_noted_and_not_said_again():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    probabilities = rng.dirichlet(np.ones(3), 60)
    with pytest.warns(NoshadowWarning, match="these look like probabilities"):
        layer = LastLayer(x, probabilities, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = audit(layer)
    assert any("these look like probabilities" in note for note in result.notes)
    assert any("not a linear function" in note for note in result.notes)
    assert texts(caught, NoshadowWarning) == [note for note in result.notes if note not in layer.notes]
    assert len(set(result.notes)) == len(result.notes)


class Grumbling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 3)

    def forward(self, x):
        warnings.warn("an old model", FutureWarning, stacklevel=1)
        warnings.warn("its head was cut", NoshadowWarning, stacklevel=1)
        return self.head(x)


def test_warnings_of_others_are_let_through():
    x, y = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = audit(Grumbling(), (x, y), batch_size=100)
    assert set(texts(caught, FutureWarning)) == {"an old model"}
    assert "its head was cut" in result.notes
    assert texts(caught, NoshadowWarning).count("its head was cut") == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(InputError, match="got 9 in rows 0, 3"):
            audit(Grumbling(), (x, y + 9 * (y == 0)))
    assert set(texts(caught, FutureWarning)) == {"an old model"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        with pytest.raises(InputError, match="FutureWarning: an old model"):
            audit(Grumbling(), (x, y))


def test_metadata_say_what_was_weighted(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), rng.integers(0, 3, 30)
    z = x @ rng.normal(size=(2, 3))
    plain = audit(LastLayer(x, z, y)).metadata
    assert (plain["sample_weight"], plain["class_weight"], plain["label_smoothing"]) == (False, None, 0.0)
    options = {"sample_weight": np.ones(30), "class_weight": [1.0, 2.0, 3.0], "label_smoothing": 0.1}
    path = audit(LastLayer(x, z, y, **options)).save(tmp_path / "a.parquet")
    facts = json.loads(pq.read_schema(path).metadata[b"noshadow"])
    assert (facts["sample_weight"], facts["class_weight"], facts["label_smoothing"]) == (True, [1.0, 2.0, 3.0], 0.1)


def test_an_estimator_that_stopped_short_is_told_to_go_on():
    """A regression has no training run to trace: what it lacks are iterations."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import scale

    x, y = load_breast_cancer(return_X_y=True)
    x = scale(x)
    short, done = (audit(LogisticRegression(tol=tol, max_iter=1000).fit(x, y), (x, y)) for tol in (1e-2, 1e-9))
    assert "attack_accuracy" not in short.table
    (hint,) = short.metadata["advice"]
    assert "smaller tol=" in hint
    assert "attack_accuracy" in done.table
    assert done.metadata["advice"] == []


def test_labels_in_another_order_are_refused():
    """Rows pair by position; frames whose labels say otherwise would be paired wrong in silence."""
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(30, 2)), index=rng.permutation(30))
    y = pd.Series(rng.normal(size=30), index=x.index)
    moved = y.sort_index()
    with pytest.raises(InputError, match=r"^targets: its index has the labels of features in another order"):
        LastLayer(x, y, moved, "squared")
    with pytest.raises(InputError, match=r"^outputs: .*pass outputs\.loc\[features\.index\]"):
        LastLayer(x, moved, y, "squared")
    with pytest.raises(InputError, match=r"^sample_weight: its index has the labels of targets"):
        LastLayer(x.to_numpy(), y.to_numpy(), y, "squared", sample_weight=moved.abs())
    model = Ridge().fit(x, y)
    for name in ("ids", "groups"):
        with pytest.raises(InputError, match=rf"^{name}: its index has the labels of X in another order, first in row"):
            audit(model, (x, y), **{name: moved})
    with pytest.raises(InputError, match=r"^groups\['site'\]: its index has the labels of X in another order"):
        audit(model, (x, y), groups={"site": moved})
    counted = moved.reset_index(drop=True)
    counted.index += 100
    assert audit(model, (x, y), groups=counted).table["group"].tolist() == moved.tolist()  # other labels: by position
    assert audit(model, (x, y), groups=moved.to_numpy()).table["group"].tolist() == moved.tolist()
    assert LastLayer(x, y, y, "squared").n == 30


def test_score_and_audit_of_a_trained_networks_last_layer_have_the_same_columns():
    """A head that has converged on features that were trained with it has not the law of a head on fixed ones."""
    torch.manual_seed(0)
    x = torch.randn(200, 5)
    y = (x[:, 0] + torch.randn(200) > 0).long()
    net = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=500, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y, reduction="sum")
        (loss := loss + 0.5 * sum(p.square().sum() for p in net.parameters())).backward()
        return loss

    optimizer.step(closure)
    layer = last_layer(net, (x, y), ridge=1.0)
    audited = audit(net, (x, y), ridge=1.0).table
    scored = score(layer)
    assert not [name for name in scored if name.startswith("attack_")]
    assert list(scored) == [name for name in audited if name in SCORES]
    bare = LastLayer(layer.features, layer.outputs, layer.targets, layer.head, ridge=1.0, penalize_bias=True)
    assert "attack_accuracy" in score(bare)  # arrays do not say who made the features


@pytest.mark.parametrize("head", ["logistic", "squared"])
def test_the_head_is_that_of_the_trace_where_the_targets_leave_a_choice(head):
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    y = (x[:, 0] > 0).long()
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    trace = Trace(head=head)
    trace.update(net, (x, y))
    trace.update(net, (x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)
        assert f"{head} head" in repr(audit(net, (x, y), trace=trace, ridge=1.0))
        other = {"logistic": "squared", "squared": "logistic"}[head]
        with pytest.raises(InputError, match=f"its losses are those of a {head} head, the layer has a {other} one"):
            audit(net, (x, y), trace=trace, ridge=1.0, head=other)  # what is said comes first
    with pytest.raises(InputError, match="head: it cannot be told"):
        audit(net, (x, y), ridge=1.0)


def test_of_several_values_no_rates_are_promised():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = x[:, :2] + rng.normal(size=(60, 2))
    found = audit(Ridge(alpha=0.1).fit(x, y), (x, y))
    assert not any("success rate" in hint for hint in found.metadata["advice"])
