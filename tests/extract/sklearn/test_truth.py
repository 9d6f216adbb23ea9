"""Every scikit-learn estimator against brute-force refits without a record: the same objective, fitted by other means.

What is left out stays out of the loss alone: the penalty, the scalers and "balanced" weights are those of all records.
"""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
from scipy.special import expit, log_softmax
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    Ridge,
    RidgeClassifier,
    RidgeClassifierCV,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from noshadow import audit
from noshadow.extract import extract
from noshadow.scoring import score_with_diagnostics

N = 60
ROWS = np.arange(N)
SOME = ROWS[::3]
EXACT = {"tol": 1e-9, "max_iter": 200, "solver": "newton-cg"}
HAS_MULTI_CLASS = "multi_class" in LogisticRegression().get_params()  # scikit-learn before 1.8
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def data():
    """Features, three classes as names (by position and size not in order) and a value."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 4)) * [1, 2, 0.5, 1] + [0, 1, 0, 0]
    logits = x @ rng.normal(size=(4, 3)) + [1.5, 0, 0]
    index = np.array([rng.choice(3, p=np.exp(log_softmax(row))) for row in logits])
    return x, np.array(["wolf", "cat", "dog"])[index], logits[:, 0] + rng.normal(size=N)


def squared_gaps(x, targets, alpha, weights=None):
    """The squared error of each record at the ridge fit without it, minus that at the fit with it."""
    weights = np.ones(N) if weights is None else weights

    def errors(keep):
        fitted = Ridge(alpha, solver="cholesky").fit(x[keep], targets[keep], sample_weight=weights[keep])
        return ((targets - fitted.predict(x)).reshape(N, -1) ** 2).sum(1)

    whole = errors(ROWS >= 0)
    return np.array([errors(i != ROWS)[i] - whole[i] for i in ROWS])


def log_loss_gaps(x, y, c, weights=None, **settings):
    """The log loss of some records at the logistic fit without each, minus that at the fit with it."""
    weights = np.ones(N) if weights is None else weights
    own = np.searchsorted(np.unique(y), y)

    def losses(keep):
        fitted = LogisticRegression(C=c, **{**EXACT, **settings}).fit(x[keep], y[keep], sample_weight=weights[keep])
        return -fitted.predict_log_proba(x)[ROWS, own]

    whole = losses(ROWS >= 0)
    return np.array([losses(i != ROWS)[i] - whole[i] for i in SOME])


def one_against_the_rest_gaps(x, y, c, weights=None, **settings):
    """The same, summed over a binary problem per class; weights (n, m)."""
    classes = np.unique(y)
    weights = np.ones((N, len(classes))) if weights is None else weights
    return sum(log_loss_gaps(x, y == k, c, weights[:, j], **settings) for j, k in enumerate(classes))


def assert_logistic(model, data, truth, sharp=True, **stated):
    """One Newton step away from a fit is not the refit, but close; and the objective's gradient is zero."""
    x, y = data
    result = audit(model, (x, y), **stated)
    got = result.table["leave_one_out"].to_numpy()[SOME]
    assert spearmanr(got, truth)[0] > 0.995
    assert np.median(np.abs(got / truth - 1)) < 0.06
    if sharp:
        assert result.metadata["stationarity"] < 1e-3
    return result


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression_cv_has_the_penalty_that_it_chose(classes, data):
    x, y, _ = data
    y = y if classes == 3 else np.where(y == "dog", "dog", "other")
    model = LogisticRegressionCV(Cs=[0.003, 0.01, 0.03], cv=3, scoring="neg_log_loss", **EXACT).fit(x, y)
    chosen = float(np.ravel(model.C_)[0])
    result = assert_logistic(model, (x, y), log_loss_gaps(x, y, chosen))
    assert result.metadata["ridge"] == pytest.approx(1 / chosen)
    assert result.metadata["head"] == ("softmax" if classes == 3 else "logistic")
    assert list(result.table["target"]) == list(y)


def test_the_intercept_of_liblinear_is_that_of_a_constant_feature(data):
    """LogisticRegressionCV sets it to 1 in its last fit, whatever intercept_scaling says."""
    x, y, _ = data
    y = np.where(y == "dog", "dog", "other")
    settings = {"solver": "liblinear", "intercept_scaling": 5.0, "tol": 1e-10, "max_iter": 100_000}
    for model, scaling in (
        (LogisticRegression(C=0.05, **settings), 5.0),
        (LogisticRegressionCV(Cs=[0.05], cv=3, scoring="neg_log_loss", **settings), 1.0),
    ):
        extended = np.hstack([x, np.full((N, 1), scaling)])
        assert_logistic(model.fit(x, y), (x, y), log_loss_gaps(extended, y, 0.05, fit_intercept=False))


@pytest.mark.parametrize("cv", [None, 3])
@pytest.mark.parametrize("outputs", [1, 2])
def test_ridge_cv_has_the_alpha_that_it_chose(cv, outputs, data):
    x, _, t = data
    t = t if outputs == 1 else np.stack([t, x[:, 0] ** 2], 1)
    model = RidgeCV([1.0, 5.0, 30.0], cv=cv).fit(x, t)
    got = audit(model, (x, t))
    assert got.metadata["ridge"] == 2 * model.alpha_
    np.testing.assert_allclose(got.table["leave_one_out"], squared_gaps(x, t, model.alpha_), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("weight", [None, "balanced", "by class"])
@pytest.mark.parametrize("kind", ["binary", "three classes", "labels"])
@pytest.mark.parametrize("chooses", [False, True])
def test_ridge_classifiers_are_least_squares_on_signs(kind, weight, chooses, data):
    x, y, _ = data
    if kind == "labels":
        if weight == "by class":
            return  # scikit-learn takes no dictionary for several labels
        y = np.stack([x[:, 0] > 0, x.sum(1) > 1, y == "dog"], 1).astype(int)
        signs = 2.0 * y - 1.0
    else:
        y = y if kind == "three classes" else np.where(y == "dog", "dog", "other")
        signs = np.where(y[:, None] == np.unique(y), 1.0, -1.0)
        signs = signs if kind == "three classes" else signs[:, 1]
    by_class = {"dog": 3.0, **({"cat": 0.5, "wolf": 1.0} if kind == "three classes" else {"other": 0.5})}
    class_weight = by_class if weight == "by class" else weight
    model = RidgeClassifierCV([2.0, 20.0], class_weight=class_weight) if chooses else RidgeClassifier(7.0)
    model = model.set_params(class_weight=class_weight).fit(x, y)
    alpha = model.alpha_ if chooses else 7.0
    result = audit(model, (x, y))
    weights = None if class_weight is None else compute_sample_weight(class_weight, y)
    np.testing.assert_allclose(result.table["leave_one_out"], squared_gaps(x, signs, alpha, weights), rtol=1e-7)
    if kind != "labels":
        assert list(result.table["target"]) == list(y)


@pytest.mark.parametrize("weight", ["balanced", {"cat": 4.0, "dog": 0.3}])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("chooses", [False, True])
def test_class_weights_are_read_off_logistic_regression(weight, classes, chooses, data):
    x, y, _ = data
    y = y if classes == 3 else np.where(y == "dog", "dog", "cat")
    c = 0.05
    kind = LogisticRegressionCV(Cs=[c], cv=3, scoring="neg_log_loss") if chooses else LogisticRegression(C=c)
    model = kind.set_params(class_weight=weight, **EXACT).fit(x, y)
    weights = compute_sample_weight(weight, y)
    assert_logistic(model, (x, y), log_loss_gaps(x, y, c, weights))
    np.testing.assert_allclose(extract(model, (x, y)).layer.sample_weight, weights)


@pytest.mark.parametrize("weight", [None, "balanced"])
def test_stated_sample_weights_multiply_what_the_estimator_says(weight, data):
    x, y, t = data
    stated = np.random.default_rng(1).exponential(size=N)
    model = LogisticRegression(C=0.05, class_weight=weight, **EXACT).fit(x, y, sample_weight=stated)
    weights = stated
    if weight == "balanced":  # by weight since scikit-learn 1.6 or so; by count before
        counts = stated if "sample_weight" in inspect.signature(compute_class_weight).parameters else np.ones(N)
        weights = stated * [counts.sum() / (3 * counts[y == label].sum()) for label in y]
    assert_logistic(model, (x, y), log_loss_gaps(x, y, 0.05, weights), sample_weight=stated)
    for linear, alpha in ((Ridge(3.0), 3.0), (LinearRegression(), 0.0)):
        got = audit(linear.fit(x, t, sample_weight=stated), (x, t), sample_weight=stated).table["leave_one_out"]
        np.testing.assert_allclose(got, squared_gaps(x, t, alpha, stated), rtol=1e-7)


@pytest.mark.parametrize("transformed", ["function", "transformer", "pipeline", "default"])
def test_transformed_targets_are_those_that_the_regressor_saw(transformed, data):
    x, _, t = data
    y = np.exp(t / 3)
    scaled = StandardScaler().fit(x)
    model = {
        "function": TransformedTargetRegressor(Ridge(2.0), func=np.log, inverse_func=np.exp),
        "transformer": TransformedTargetRegressor(Ridge(2.0), transformer=StandardScaler()),
        "pipeline": make_pipeline(
            StandardScaler(), TransformedTargetRegressor(Ridge(2.0), func=np.log, inverse_func=np.exp)
        ),
        "default": TransformedTargetRegressor(),
    }[transformed].fit(x, y)
    seen = {"transformer": (y - y.mean()) / y.std(), "default": y}.get(transformed, np.log(y))
    features = scaled.transform(x) if transformed == "pipeline" else x
    result = audit(model, (x, y))
    truth = squared_gaps(features, seen, 0.0 if transformed == "default" else 2.0)
    np.testing.assert_allclose(result.table["leave_one_out"], truth, rtol=1e-7)
    np.testing.assert_allclose(result.table["target"], y)


def descended(model, x, y, **fitting):
    """Stochastic descent far beyond its default number of epochs."""
    slow = {"learning_rate": "invscaling", "eta0": 0.05, "power_t": 0.4, "tol": None, "max_iter": 20_000}
    return model.set_params(**slow, average=N * 1000, random_state=0).fit(x, y, **fitting)


@pytest.mark.parametrize("weight", [None, {"cat": 1.0, "dog": 3.0}])
def test_sgd_classifier_has_n_times_its_penalty(weight, data):
    x, y, _ = data
    y = np.where(y == "dog", "dog", "cat")
    stated = np.random.default_rng(2).uniform(0.5, 2, size=N)
    model = descended(SGDClassifier(loss="log_loss", alpha=0.2, class_weight=weight), x, y, sample_weight=stated)
    truth = log_loss_gaps(x, y, 1 / (N * 0.2), stated * compute_sample_weight(weight, y))
    result = assert_logistic(model, (x, y), truth, sharp=False, sample_weight=stated)
    assert result.metadata["ridge"] == pytest.approx(12.0)
    assert result.metadata["stationarity"] < 0.02
    assert audit(model, (x, y), sample_weight=stated, ridge=24.0).metadata["stationarity"] > 0.1


@pytest.mark.parametrize("weight", [None, "balanced"])
def test_sgd_classifier_of_three_classes_is_a_problem_per_class(weight, data):
    x, y, _ = data
    model = descended(SGDClassifier(loss="log_loss", alpha=0.2, class_weight=weight), x, y)
    classes = np.unique(y)
    own = y[:, None] == classes
    weights = np.where(own, compute_class_weight(weight, classes=classes, y=y), 1.0)
    result = assert_logistic(model, (x, y), one_against_the_rest_gaps(x, y, 1 / (N * 0.2), weights), sharp=False)
    assert result.metadata["stationarity"] < 0.02
    assert list(result.table["target"]) == list(y)
    losses = -np.where(own, np.log(expit(model.decision_function(x))), np.log(expit(-model.decision_function(x))))
    np.testing.assert_allclose(result.table["loss"], losses.sum(1))


def test_sgd_regressor_has_twice_n_times_its_penalty(data):
    x, _, t = data
    model = descended(SGDRegressor(alpha=0.05), x, t)
    result = audit(model, (x, t))
    assert result.metadata["ridge"] == pytest.approx(2 * N * 0.05)
    np.testing.assert_allclose(result.table["leave_one_out"], squared_gaps(x, t, N * 0.05), rtol=0.02, atol=1e-3)
    without = audit(descended(SGDRegressor(penalty=None), x, t), (x, t))
    assert without.metadata["ridge"] == 0
    np.testing.assert_allclose(without.table["leave_one_out"], squared_gaps(x, t, 0.0), rtol=0.02, atol=1e-3)


def test_networks_on_several_labels_are_a_problem_per_label(data):
    x, y, _ = data
    labels = np.stack([y == "dog", x[:, 0] > 0.3], 1).astype(int)
    model = MLPClassifier((4,), activation="tanh", solver="lbfgs", alpha=2.0, tol=1e-14, random_state=0)
    model.set_params(max_iter=20_000, max_fun=50_000).fit(x, labels)
    features = np.tanh(x @ model.coefs_[0] + model.intercepts_[0])
    truth = sum(log_loss_gaps(features, labels[:, k], 1 / 2.0) for k in range(2))
    result = assert_logistic(model, (x, labels), truth, sharp=False)
    assert result.metadata["stationarity"] < 0.01
    np.testing.assert_array_equal(result.table[["target_0", "target_1"]], labels)


def as_before_release_1_8(y, x, c, weights, scheme):
    """A model that was fitted with multi_class= and is read by any release: fitted here where it still can be."""
    classes = np.unique(y)
    model = LogisticRegression(C=c, **EXACT).fit(x, y)
    if HAS_MULTI_CLASS:
        return model.set_params(multi_class=scheme, class_weight="balanced" if weights else None).fit(x, y)
    parts = []
    for k in classes if scheme == "ovr" else ():
        own = compute_sample_weight("balanced" if weights else None, y == k)
        parts.append(LogisticRegression(C=c, **EXACT).fit(x, y == k, sample_weight=own))
    if scheme == "multinomial":  # logits −z and z, both penalised: z/2 of the logistic fit with twice the C
        half = LogisticRegression(C=2 * c, **EXACT).fit(x, y)
        model.coef_, model.intercept_ = half.coef_ / 2, half.intercept_ / 2
    else:
        model.coef_ = np.concatenate([part.coef_ for part in parts])
        model.intercept_ = np.concatenate([part.intercept_ for part in parts])
    model.multi_class, model.class_weight = scheme, "balanced" if weights else None
    return model


@pytest.mark.parametrize("weights", [False, True])
def test_one_against_the_rest_is_not_a_softmax(weights, data):
    x, y, _ = data
    model = as_before_release_1_8(y, x, 0.05, weights, "ovr")
    own = np.stack([compute_sample_weight("balanced" if weights else None, y == k) for k in np.unique(y)], 1)
    result = assert_logistic(model, (x, y), one_against_the_rest_gaps(x, y, 0.05, own))
    assert result.metadata["head"] == "logistic"
    assert list(result.table["target"]) == list(y)


def test_a_softmax_of_two_classes_has_two_penalised_logits(data):
    x, y, _ = data
    y = np.where(y == "dog", "dog", "other")
    model = as_before_release_1_8(y, x, 0.05, False, "multinomial")
    result = assert_logistic(model, (x, y), log_loss_gaps(x, y, 0.1))
    assert result.metadata["head"] == "softmax"
    if HAS_MULTI_CLASS:
        layer = extract(model, (x, y)).layer
        losses = -np.log(model.predict_proba(x)[ROWS, (y == "other").astype(int)])
        np.testing.assert_allclose(layer.kind.loss(layer.outputs, layer.targets), losses, rtol=1e-9)


def test_solvers_that_know_no_softmax_fit_a_problem_per_class(data):
    """liblinear before 1.8 and newton-cholesky before 1.6; where they do, or refuse, a softmax or nothing is read."""
    x, y, _ = data
    for solver in ("newton-cholesky", "liblinear"):
        model = LogisticRegression(C=0.05, tol=1e-10, max_iter=100_000, solver=solver)
        try:
            model.fit(x, y)
        except ValueError:
            assert not HAS_MULTI_CLASS
            continue
        if solver == "liblinear":
            extended = np.hstack([x, np.ones((N, 1))])
            truth = one_against_the_rest_gaps(extended, y, 0.05, fit_intercept=False)
        else:
            softmax = np.allclose(model.coef_.sum(0), 0, atol=1e-6)
            truth = (log_loss_gaps if softmax else one_against_the_rest_gaps)(x, y, 0.05)
        assert_logistic(model, (x, y), truth)


def test_a_problem_per_class_with_its_own_weight_in_liblinear(data):
    if not HAS_MULTI_CLASS:
        return  # liblinear fits two classes at a time now
    x, y, _ = data
    weight = {"cat": 4.0, "dog": 0.5, "wolf": 1.0}
    model = LogisticRegression(C=0.05, tol=1e-10, max_iter=100_000, solver="liblinear", class_weight=weight).fit(x, y)
    own = np.where(y[:, None] == np.unique(y), [4.0, 0.5, 1.0], 1.0)
    extended = np.hstack([x, np.ones((N, 1))])
    truth = one_against_the_rest_gaps(extended, y, 0.05, own, fit_intercept=False)
    assert_logistic(model, (x, y), truth)


def test_the_parameters_are_handed_on(data):
    """Features then intercept, a column per output: outputs = design · coefficients, as the model's own function."""
    x, y, t = data
    binary = np.where(y == "dog", "dog", "other")
    liblinear = LogisticRegression(solver="liblinear", intercept_scaling=3.0)
    cases = [
        (LogisticRegression(**EXACT), y, "decision_function"),
        (LogisticRegression(fit_intercept=False, **EXACT), y, "decision_function"),
        (liblinear, binary, "decision_function"),
        (RidgeClassifier(), binary, "decision_function"),
        (RidgeClassifier(), y, "decision_function"),
        (SGDClassifier(loss="log_loss", random_state=0), binary, "decision_function"),
        (SGDRegressor(random_state=0), t, "predict"),
        (Ridge(), np.stack([t, -t], 1), "predict"),
        (LinearRegression(fit_intercept=False), t[:, None], "predict"),
        (RidgeCV(), t, "predict"),
    ]
    for model, target, function in cases:
        layer = extract(clone(model).fit(x, target), (x, target)).layer
        own = getattr(clone(model).fit(x, target), function)(x)
        np.testing.assert_allclose(layer.outputs.numpy().squeeze(), np.squeeze(own), rtol=1e-9)
        np.testing.assert_allclose(layer.records(slice(0, N)).design @ layer.coefficients, layer.outputs, rtol=1e-9)
    sparse_coefficients = clone(cases[5][0]).fit(x, binary).sparsify()
    dense_coefficients = clone(cases[5][0]).fit(x, binary)
    a, b = (extract(model, (x, binary)).layer for model in (sparse_coefficients, dense_coefficients))
    np.testing.assert_array_equal(a.coefficients, b.coefficients)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = MLPClassifier((5, 3), max_iter=30, random_state=0).fit(x, y)
    layer = extract(network, (x, y)).layer
    assert layer.coefficients.shape == (4, 3)
    np.testing.assert_allclose(layer.records(slice(0, N)).design @ layer.coefficients, layer.outputs, rtol=1e-9)
    assert score_with_diagnostics(layer)[1].linearity < 1e-6
