"""scikit-learn: the head, the features and above all the regularisation, by checking that the head is stationary.

Truth by refits is in test_sklearn_truth.py, what users hold and what is refused in test_sklearn_data.py.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from noshadow import InputError, audit
from noshadow.extract import extract
from noshadow.objective import Objective
from noshadow.scoring import score_with_diagnostics


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)) * [1, 5, 0.2, 1] + [0, 3, 0, 0]
    logits = x @ rng.normal(size=(4, 3))
    y = np.array([rng.choice(3, p=np.exp(v - v.max()) / np.exp(v - v.max()).sum()) for v in logits])
    return x, y, logits[:, 0] + rng.normal(size=200)


def stationarity(model, x, y):
    return score_with_diagnostics(extract(model, (x, y)).layer)[1].stationarity


EXACT = {"tol": 1e-9, "max_iter": 200}


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(C=0.3, solver="newton-cg", **EXACT),
        LogisticRegression(C=0.3, solver="newton-cg", fit_intercept=False, **EXACT),
        LogisticRegression(C=np.inf, solver="newton-cg", **EXACT),
        LogisticRegression(C=0.3, solver="liblinear", tol=1e-10, max_iter=10_000),
        LogisticRegression(C=0.3, solver="liblinear", intercept_scaling=3.0, tol=1e-10, max_iter=10_000),
    ],
)
@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression_is_stationary_under_the_ridge_read_off_it(model, classes, data):
    x, y, _ = data
    x, y = (x, y) if classes == 3 else (x[y < 2], y[y < 2])
    if classes == 3 and model.solver == "liblinear":
        with pytest.raises(InputError, match="OneVsRestClassifier has no last linear layer"):
            extract(OneVsRestClassifier(clone(model)).fit(x, y), (x, y))
        return
    model.fit(x, y)
    layer = extract(model, (x, y)).layer
    assert layer.head == ("softmax" if classes == 3 else "logistic")
    assert stationarity(model, x, y) < 0.02
    if np.isfinite(model.C):
        assert score_with_diagnostics(extract(model, (x, y), Objective(ridge=30.0)).layer)[1].stationarity > 0.3


@pytest.mark.parametrize("alpha", [0.0, 7.0])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("outputs", [1, 2])
def test_linear_models_are_stationary_under_the_ridge_read_off_them(alpha, intercept, outputs, data):
    x, _, t = data
    t = t if outputs == 1 else np.stack([t, x[:, 0] ** 2], 1)
    model = Ridge(alpha=alpha, fit_intercept=intercept) if alpha else LinearRegression(fit_intercept=intercept)
    model.fit(x, t)
    layer = extract(model, (x, t)).layer
    assert layer.ridge == 2 * alpha
    assert layer.head == "squared"
    assert stationarity(model, x, t) < 1e-6
    got = audit(model, (x, t)).table["leave_one_out"]
    for i in (0, 57, 199):
        rest = np.arange(200) != i
        again = type(model)(**model.get_params()).fit(x[rest], t[rest])
        gap = ((t[i] - again.predict(x[i : i + 1])) ** 2).sum() - ((t[i] - model.predict(x[i : i + 1])) ** 2).sum()
        assert got[i] == pytest.approx(gap, rel=1e-8)


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity"])
@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "two outputs"])
def test_networks_give_their_last_hidden_layer(activation, kind, data):
    x, y, t = data
    x = StandardScaler().fit_transform(x)
    settings = {
        "hidden_layer_sizes": (6, 5),
        "activation": activation,
        "solver": "lbfgs",
        "alpha": 0.5,
        "tol": 1e-14,
        "max_iter": 20_000,
        "max_fun": 40_000,
        "random_state": 0,
    }
    if kind in ("binary", "multiclass"):
        labels = np.array(["no", "yes", "maybe"])[y if kind == "multiclass" else np.minimum(y, 1)]
        model = MLPClassifier(**settings).fit(x, labels)
        layer = extract(model, (x, labels)).layer
        p = model.predict_proba(x)
        got = layer.kind.loss(layer.outputs, layer.targets).numpy()
        np.testing.assert_allclose(np.exp(-got), p[np.arange(200), layer.targets.numpy()], rtol=1e-9)
        assert layer.ridge == 0.5
        truth = labels
    else:
        truth = t if kind == "regression" else np.stack([t, x[:, 1]], 1)
        model = MLPRegressor(**settings).fit(x, truth)
        layer = extract(model, (x, truth)).layer
        np.testing.assert_allclose(layer.outputs.numpy().squeeze(), model.predict(x), rtol=1e-9, atol=1e-12)
        assert layer.ridge == 1.0
    assert layer.features.shape == (200, 5)
    assert not layer.penalize_bias
    if activation != "relu" and kind != "two outputs":  # L-BFGS stalls at kinks, and on two outputs (next test)
        assert stationarity(model, x, truth) < 0.2


def test_two_outputs_count_in_the_ridge_of_networks(data):
    """scikit-learn's gradient of a two-output loss is not that of the loss it reports: descend along the gradient."""
    x, _, t = data
    x = StandardScaler().fit_transform(x)
    truth = np.stack([t, x[:, 1]], 1)
    model = MLPRegressor(
        hidden_layer_sizes=(4,), activation="tanh", solver="sgd", alpha=2.0, batch_size=200, max_iter=4000, tol=0.0
    )
    model.set_params(batch_size=200, tol=0.0, learning_rate_init=0.1, n_iter_no_change=10_000, random_state=0)
    with pytest.warns(match="Maximum iterations"):
        model.fit(x, truth)
    assert extract(model, (x, truth)).layer.ridge == 4.0
    assert stationarity(model, x, truth) < 0.02
    for wrong in (0.0, 2.0, 8.0):
        assert score_with_diagnostics(extract(model, (x, truth), Objective(ridge=wrong)).layer)[1].stationarity > 0.2


def test_batches_count_in_the_ridge_of_networks(data):
    x, y, _ = data
    model = MLPClassifier((4,), solver="adam", batch_size=50, alpha=0.1, max_iter=3, random_state=0)
    with pytest.warns(match="Maximum iterations"):
        model.fit(x, y)
    assert extract(model, (x, y)).layer.ridge == pytest.approx(0.1 * 200 / 50)


def test_pipelines_searches_frames_and_sparse_data(data):
    x, y, _ = data
    frame = pd.DataFrame(x, columns=list("abcd"), index=[f"person-{i}" for i in range(200)])
    pipeline = make_pipeline(StandardScaler(), PolynomialFeatures(2), LogisticRegression(**EXACT, solver="newton-cg"))
    search = GridSearchCV(pipeline, {"logisticregression__C": [0.1, 1.0]}, cv=3).fit(frame, y)
    result = audit(search, (frame, y))
    assert list(result.table["id"][:2]) == ["person-0", "person-1"]
    assert result.metadata["features"] == 15
    assert result.metadata["rank"] == 15  # PolynomialFeatures' own constant repeats the intercept
    assert result.metadata["stationarity"] < 0.02
    model = LogisticRegression(**EXACT, solver="newton-cg").fit(sparse.csr_matrix(x), y)
    dense = LogisticRegression(**EXACT, solver="newton-cg").fit(x, y)
    a, b = audit(model, (sparse.csr_matrix(x), y)).table, audit(dense, (x, y)).table
    np.testing.assert_allclose(a["newton"], b["newton"], rtol=1e-5)
