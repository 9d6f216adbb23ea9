"""scikit-learn estimators and data as users hold them: wrapped, framed, sparse, named; and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401  scikit-learn's switch for these two searches
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
from sklearn.linear_model import (
    ElasticNet,
    HuberRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    Perceptron,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    RandomizedSearchCV,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler, TargetEncoder
from sklearn.svm import SVC, LinearSVC, LinearSVR
from sklearn.tree import DecisionTreeClassifier

from noshadow import InputError, audit
from noshadow.extract import extract
from noshadow.objective import Objective

N = 120
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 4))
    y = (x @ rng.normal(size=(4, 3)) + rng.gumbel(size=(N, 3))).argmax(1)
    return x, y, x[:, 0] + rng.normal(size=N)


@pytest.fixture(scope="module")
def fitted(data):
    x, y, _ = data
    return LogisticRegression(C=0.5).fit(x, y)


def same(a, b):
    pd.testing.assert_frame_equal(a.table, b.table)


@pytest.mark.parametrize(
    "search",
    [
        HalvingGridSearchCV(Ridge(), {"alpha": [1.0, 10.0]}, cv=3, min_resources=40),
        HalvingRandomSearchCV(Ridge(), {"alpha": [1.0, 10.0]}, cv=3, min_resources=40, random_state=0),
        RandomizedSearchCV(Ridge(), {"alpha": [1.0, 10.0]}, n_iter=2, cv=3, random_state=0),
        GridSearchCV(Ridge(), {"alpha": [1.0, 10.0]}, cv=3),
    ],
    ids=lambda search: type(search).__name__,
)
def test_searches_are_audited_by_their_best_model(search, data):
    x, _, t = data
    search.fit(x, t)
    result = audit(search, (x, t))
    same(result, audit(search.best_estimator_, (x, t)))
    assert result.metadata["ridge"] == 2 * search.best_params_["alpha"]
    assert result.metadata["model"] == type(search).__name__
    assert result.metadata["layer"] == "Ridge.coef_"


def test_a_search_without_a_model_is_explained(data):
    x, y, t = data
    search = GridSearchCV(Ridge(), {"alpha": [1.0, 10.0]}, cv=3, refit=False).fit(x, t)
    with pytest.raises(InputError, match=r"GridSearchCV was run with refit=False and kept no model; fit its estimator"):
        audit(search, (x, t))
    with pytest.raises(InputError, match=r"this GridSearchCV is not fitted"):
        audit(GridSearchCV(Ridge(), {"alpha": [1.0]}), (x, t))
    folds = LogisticRegressionCV(Cs=[0.1, 1.0], cv=3, refit=False, scoring="accuracy").fit(x, y)
    with pytest.raises(InputError, match=r"LogisticRegressionCV with refit=False averages the models of its folds"):
        audit(folds, (x, y))


def test_pipelines_inside_searches_inside_pipelines(data):
    x, y, _ = data
    inner = make_pipeline(StandardScaler(), LogisticRegression())
    search = GridSearchCV(inner, {"logisticregression__C": [0.1, 1.0]}, cv=3)
    model = Pipeline([("nothing", "passthrough"), ("log", FunctionTransformer(np.arcsinh)), ("search", search)])
    model.fit(x, y)
    scaled = StandardScaler().fit_transform(np.arcsinh(x))
    plain = LogisticRegression(C=search.fit(np.arcsinh(x), y).best_params_["logisticregression__C"]).fit(scaled, y)
    same(audit(model, (x, y)), audit(plain, (scaled, y)))
    with pytest.raises(InputError, match=r"this Pipeline ends in passthrough"):
        audit(Pipeline([("scale", StandardScaler()), ("end", "passthrough")]).fit(x), (x, y))
    with pytest.raises(InputError, match=r"this Pipeline is not fitted; call fit"):
        audit(make_pipeline(StandardScaler(), LogisticRegression()), (x, y))


def test_columns_of_frames_are_encoded_as_at_fit(data):
    x, y, _ = data
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(x, columns=list("abcd")).assign(town=rng.choice(["A", "B", "C"], size=N))
    names = np.array(["no", "yes", "maybe"])[y]
    encode = ColumnTransformer([("scale", StandardScaler(), list("abcd")), ("town", OneHotEncoder(), ["town"])])
    encode.sparse_threshold = 1.0
    model = make_pipeline(encode, LogisticRegression()).fit(frame, names)
    assert sparse.issparse(model[0].transform(frame))
    result = audit(model, (frame, pd.DataFrame({"answer": names})))
    towns = (frame["town"].to_numpy()[:, None] == ["A", "B", "C"]).astype(float)
    by_hand = np.hstack([(x - x.mean(0)) / x.std(0), towns])
    plain = audit(LogisticRegression().fit(by_hand, names), (by_hand, names))
    assert list(result.table["nearest_class"]) == list(plain.table["nearest_class"])
    for column in plain.table.columns.drop(["id", "target", "nearest_class"]):
        np.testing.assert_allclose(result.table[column], plain.table[column], rtol=1e-5)
    assert list(result.table["target"]) == list(names)
    same(result, audit(model, (frame[["town", *"dcba"]], names)))  # this transformer picks its columns by name
    with pytest.raises(InputError, match=r"the steps before LogisticRegression cannot take this X: .*town"):
        audit(model, (frame.drop(columns="town"), names))
    with pytest.raises(InputError, match=r"the steps before LogisticRegression cannot take this X: .*Atlantis"):
        audit(model, (frame.assign(town="Atlantis"), names))


@pytest.mark.parametrize("wrap", [False, True])
def test_columns_in_another_order_are_refused(wrap, data):
    x, y, _ = data
    frame = pd.DataFrame(x, columns=list("abcd"))
    model = (make_pipeline(StandardScaler(), LogisticRegression()) if wrap else LogisticRegression()).fit(frame, y)
    with pytest.raises(InputError, match=r"^data: the columns of X are in another order than at fit; pass X\["):
        audit(model, (frame[list("dcba")], y))
    with pytest.raises(InputError, match=r"^data: X has no column 'b', which .* was fitted on$"):
        audit(model, (frame.rename(columns={"b": "e"}), y))
    with pytest.raises(InputError, match=r"^data: X has the column 'e', which .* was not fitted on$"):
        audit(model, (frame.assign(e=1.0), y))
    with pytest.raises(InputError, match=r"^data: .*3 (columns|features), but \w+ (was fitted on|is expecting) 4"):
        audit(model, (x[:, :3], y))
    for wrong in (x[:, 0], "records", [*x.tolist()[:-1], [1.0]], np.full((N, 4), "word"), [object()] * N, 3):
        with pytest.raises(InputError, match=r"^data: [^\n]*$"):
            audit(model, (wrong, y))


def test_missing_values_name_their_row(data, fitted):
    x, y, t = data
    for row in (0, 7):
        holed = x.copy()
        holed[row, 1] = np.nan
        with pytest.raises(InputError, match=rf"features: NaN or infinite in row {row} "):
            audit(fitted, (holed, y))
        frame = pd.DataFrame(x).astype("Float64")
        frame.iloc[row, 1] = pd.NA
        with pytest.raises(InputError, match=rf"features: NaN or infinite in row {row} "):
            audit(fitted, (frame, y))
    values = pd.Series(t).astype("Float64")
    values[5] = pd.NA
    with pytest.raises(InputError, match=r"targets: NaN or infinite in row 5 "):
        audit(Ridge().fit(x, t), (x, values))
    labels = pd.Series(y).astype("Int64")
    labels[3] = pd.NA
    with pytest.raises(InputError, match=r"(<NA>|nan) in row 3 \(counted from 0\) is not a class"):
        audit(fitted, (x, labels))


def test_extension_types_lists_and_columns_are_the_same_data(data, fitted):
    x, y, t = data
    want = audit(fitted, (x, y)).table
    frame = pd.DataFrame(x)
    for features in (frame, frame.astype("Float64"), frame.convert_dtypes(), x.tolist(), sparse.coo_matrix(x)):
        pd.testing.assert_frame_equal(audit(fitted, (features, y)).table, want)
    column = pd.DataFrame({"class": y})
    for targets in (pd.Series(y), column, pd.Series(y).astype("Int64"), y.tolist(), y[:, None], pd.Categorical(y)):
        got = audit(fitted, (x, targets)).table
        pd.testing.assert_frame_equal(got, want, check_dtype=False)
    ridge = Ridge().fit(x, t)
    for values in (pd.Series(t).astype("Float64"), pd.DataFrame({"t": t}), t.tolist()):
        pd.testing.assert_frame_equal(audit(ridge, (x, values)).table, audit(ridge, (x, t)).table)
    with pytest.raises(InputError, match=r"y must hold a class per record"):
        audit(fitted, (x, np.stack([y, y], 1)))


@pytest.mark.parametrize("names", [[False, True], ["no", "yes"], [-1, 1], [5.0, 2.0], ["é", "10"]])
def test_targets_are_shown_as_the_user_knows_them(names, data):
    x, y, _ = data
    labels = np.array(names)[(y > 0).astype(int)]
    for model in (LogisticRegression(), RidgeClassifier(), SGDClassifier(loss="log_loss", random_state=0)):
        table = audit(model.fit(x, labels), (x, labels)).table
        assert table["target"].tolist() == labels.tolist()
    network = MLPClassifier((3,), max_iter=5, random_state=0).fit(x, labels)
    assert audit(network, (x, labels)).table["target"].tolist() == labels.tolist()
    as_text = pd.Series(labels).astype("category")
    assert audit(LogisticRegression().fit(x, as_text), (x, as_text)).table["target"].tolist() == labels.tolist()


def test_records_pair_by_their_index(data, fitted):
    x, y, _ = data
    names = [f"person-{i}" for i in range(N)]
    frame, classes = pd.DataFrame(x, index=names), pd.Series(y, index=names)
    want = audit(fitted, (frame, classes))
    assert list(want.table["id"]) == names
    shuffled = classes.sample(frac=1, random_state=0)
    for wrong in (shuffled, shuffled.to_frame()):
        with pytest.raises(InputError, match=r"index of y is in another order than that of X \(row 0, .*y\.loc\[X"):
            audit(fitted, (frame, wrong))
    same(audit(fitted, (frame, shuffled.loc[names])), want)
    with pytest.raises(
        InputError, match=r"index of y is in another order than that of X \(row 0, counted from 0: 0 and \d"
    ):
        audit(fitted, (pd.DataFrame(x), pd.Series(y).sample(frac=1, random_state=0)))
    with pytest.raises(InputError, match=r"index of y names other records than that of X"):
        audit(fitted, (frame, classes.rename(index={"person-3": "nobody"})))
    for positional in (y, pd.Series(y), y.tolist()):  # an index that only counts names nobody
        same(audit(fitted, (frame, positional)), want)
    same(audit(fitted, (pd.DataFrame(x), classes)), audit(fitted, (x, y)))
    twice = frame.rename(index={"person-9": "person-2"})
    with pytest.raises(InputError, match=r"index of X has 'person-2' in rows 2, 9 .* a name of its own"):
        audit(fitted, (twice, y))
    with pytest.raises(InputError, match=rf"y has {N - 1} rows, but X has {N}; they must be the same records"):
        audit(fitted, (x, y[:-1]))
    with pytest.raises(InputError, match=r"index of sample_weight is in another order"):
        audit(fitted, (frame, classes), sample_weight=pd.Series(1.0, index=names[::-1]))


def test_what_is_stated_must_agree_with_the_estimator(data, fitted):
    x, y, t = data
    weight = {0: 1.0, 1: 2.0, 2: 0.5}
    weighted = LogisticRegression(class_weight=weight).fit(x, y)
    want = audit(weighted, (x, y))
    for agreeing in (weight, [1.0, 2.0, 0.5], np.array([1.0, 2.0, 0.5]), {1: 2.0, 2: 0.5, 0: 1.0}):
        same(audit(weighted, (x, y), class_weight=agreeing), want)
    for model, stated in (
        (weighted, {0: 1.0, 1: 2.0, 2: 2.0}),
        (weighted, "balanced"),
        (fitted, {0: 1.0, 1: 2.0, 2: 1.0}),
        (LogisticRegression(class_weight="balanced").fit(x, y), weight),
    ):
        with pytest.raises(InputError, match=r"class_weight: LogisticRegression was fitted with class_weight="):
            audit(model, (x, y), class_weight=stated)
    with pytest.raises(InputError, match=r"class_weight: expected a weight for each of 3 classes"):
        audit(fitted, (x, y), class_weight=[1.0, 2.0])
    with pytest.raises(InputError, match=r"class_weight: .*not in class_weight"):
        audit(fitted, (x, y), class_weight={7: 1.0})
    with pytest.raises(InputError, match=r"class_weight: Ridge takes none"):
        audit(Ridge().fit(x, t), (x, t), class_weight={0: 1.0})
    with pytest.raises(InputError, match=r"sample_weight has 3 rows, but X has"):
        audit(fitted, (x, y), sample_weight=[1.0, 2.0, 3.0])
    with pytest.raises(InputError, match=r"sample_weight: expected a weight per record"):
        audit(fitted, (x, y), sample_weight=2.0)
    with pytest.raises(InputError, match=r"label_smoothing: scikit-learn estimators smooth no labels"):
        audit(fitted, (x, y), label_smoothing=0.1)
    with pytest.raises(InputError, match=r"head: LogisticRegression trains a softmax head"):
        audit(fitted, (x, y), head="squared")
    notes = audit(fitted, (x, y), ridge=30.0).notes
    assert any(note.startswith("ridge: 30 as stated, but LogisticRegression was fitted with Λ = 2") for note in notes)
    assert not any(note.startswith("ridge:") for note in audit(fitted, (x, y), ridge=2.0).notes)


def test_records_that_were_held_out_are_noted(data):
    x, y, t = data
    settings = {"early_stopping": True, "random_state": 0}
    for model, target in (
        (SGDClassifier(loss="log_loss", **settings), y > 0),
        (SGDRegressor(**settings), t),
        (MLPRegressor(hidden_layer_sizes=(3,), **settings), t),
    ):
        notes = audit(model.fit(x, target), (x, target)).notes
        assert any("early_stopping held out a share of the records (validation_fraction=0.1)" in note for note in notes)
    whole = MLPRegressor(hidden_layer_sizes=(3,), solver="lbfgs", **settings).fit(x, t)  # lbfgs holds nothing out
    assert not any("early_stopping" in note for note in audit(whole, (x, t)).notes)


def test_steps_that_treat_training_records_otherwise_are_noted_or_refused(data):
    x, _, t = data
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(x, columns=list("abcd")).assign(town=rng.choice(["A", "B", "C"], size=N))
    encode = ColumnTransformer([("town", TargetEncoder(random_state=0), ["town"])], remainder="passthrough")
    notes = audit(make_pipeline(encode, Ridge()).fit(frame, t), (frame, t)).notes
    assert any("TargetEncoder encodes records by cross-fitting" in note for note in notes)

    class Resampler(TransformerMixin, BaseEstimator):
        def fit(self, x, y=None):
            self.fitted_ = True
            return self

        def transform(self, x):
            return x

        def fit_resample(self, x, y):
            return x[:10], y[:10]

    model = make_pipeline(Resampler(), Ridge()).fit(x, t)
    with pytest.raises(InputError, match=r"the step 'resampler' \(Resampler\) drew other records to train on"):
        audit(model, (x, t))


def test_sparse_text_is_answered():
    rng = np.random.default_rng(0)
    columns, n = 6_000, 900
    words = np.minimum(rng.zipf(1.3, n * 20) - 1, columns - 1)
    x = sparse.csr_matrix((np.ones(n * 20), words, np.arange(0, n * 20 + 1, 20)), (n, columns))
    x = TfidfTransformer().fit_transform(x)
    y = rng.integers(0, 2, n)
    model = LogisticRegression().fit(x, y)
    exact = audit(model, (x, y))  # n-sided: fewer records than columns
    part = audit(model, (x, y), memory=0.025, scores=["newton"])  # a part of the directions
    assert (exact.metadata["curvature"], exact.metadata["curvature_exact"]) == ("dense", True)
    assert (part.metadata["curvature"], part.metadata["curvature_exact"]) == ("kronecker", False)
    assert part.table["newton"].corr(exact.table["newton"], method="spearman") > 0.9
    assert part.metadata["accuracy"]["spearman"] > 0.9
    p = model.predict_proba(x)[:, 1]
    design = sparse.hstack([x, np.ones((n, 1))]).tocsr()
    penalty = sparse.diags(np.r_[np.ones(columns), 1e-9])  # Woodbury with a bias that is hardly penalised
    gram = np.asarray((design @ sparse.linalg.inv(penalty.tocsc()) @ design.T).todense())
    inner = gram @ np.linalg.inv(np.eye(n) + (p * (1 - p))[:, None] * gram)
    np.testing.assert_allclose(exact.table["leverage"], p * (1 - p) * np.diag(inner), rtol=1e-5)
    with pytest.raises(InputError, match=r"memory: expected a positive number of GiB"):
        audit(model, (x, y), memory=0)
    with pytest.raises(InputError, match=r"memory: the exact Hessian of this head has 901 × 901 entries"):
        audit(model, (x, y), memory=0.001, curvature="dense")


def test_a_sparse_table_gets_the_scores_of_a_dense_one():
    rng = np.random.default_rng(0)
    x = sparse.random(5_000, 300, density=0.01, format="csr", random_state=0)
    t = rng.normal(size=5_000)
    model = Ridge().fit(x, t)
    thin, full = audit(model, (x, t), memory=0.5), audit(model, (x.toarray(), t))
    np.testing.assert_allclose(thin.table["newton"], full.table["newton"], rtol=1e-9)


def test_text_and_networks_on_sparse_data():
    words = np.array(["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"])
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, size=6)) for _ in range(80)]
    y = np.array(["ham", "spam"])[[int("alpha" in text) for text in texts]]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, y)
    result = audit(model, (texts, y))
    assert result.metadata["features"] == 8
    assert list(result.table["target"]) == list(y)
    with pytest.raises(InputError, match=r"^data: the steps before LogisticRegression cannot take this X: [^\n]*$"):
        audit(model, ([1.0] * 80, y))
    counts = sparse.random(80, 30, density=0.2, format="csr", random_state=0)
    for hidden in ((4,), ()):
        network = MLPClassifier(hidden, max_iter=20, random_state=0).fit(counts, y)
        same(audit(network, (counts, y)), audit(network, (counts.toarray(), y)))


def test_what_has_no_head_is_refused_by_name(data):
    x, y, t = data
    binary = (y > 0).astype(int)
    for model, target, message in (
        (Perceptron(), y, "Perceptron minimises a hinge loss"),
        (LinearSVC(), y, "LinearSVC minimises a hinge loss"),
        (SVC(), y, "SVC minimises a hinge loss"),
        (LinearSVR(), t, "LinearSVR minimises an absolute error"),
        (Lasso(), t, "Lasso has an L1 penalty"),
        (ElasticNet(), t, "ElasticNet has an L1 penalty"),
        (HuberRegressor(), t, "HuberRegressor minimises another loss"),
        (PoissonRegressor(), np.abs(t), "PoissonRegressor minimises the deviance"),
        (DecisionTreeClassifier(), y, "DecisionTreeClassifier has no last linear layer that is known here; use Linear"),
        (SGDClassifier(), y, "SGDClassifier with loss='hinge' has no head that is known here; fit it with loss='log"),
        (SGDClassifier(loss="modified_huber"), binary, "loss='modified_huber'"),
        (SGDRegressor(loss="huber"), t, "SGDRegressor with loss='huber'"),
        (SGDClassifier(loss="log_loss", penalty="l1"), binary, "SGDClassifier with an L1 penalty"),
        (SGDRegressor(penalty="elasticnet"), t, "SGDRegressor with an L1 penalty"),
        (Ridge(positive=True), t, "Ridge with positive=True"),
        (LinearRegression(positive=True), t, "LinearRegression with positive=True"),
        (Ridge(alpha=np.array([1.0, 2.0])), np.stack([t, t], 1), "Ridge with a different alpha for each target"),
        (RidgeCV([0.1, 500.0], alpha_per_target=True), np.stack([t, x[:, 1] ** 2], 1), "RidgeCV with a different al"),
        (TransformedTargetRegressor(Lasso()), t, "Lasso has an L1 penalty"),
    ):
        with pytest.raises(InputError, match=rf"^model: .*{message}"):
            audit(model.fit(x, target), (x, target))


def test_other_losses_penalties_and_arguments_are_named(data, fitted):
    x, y, t = data
    names = LogisticRegression().get_params()
    l1 = {"penalty": "l1"} if "multi_class" in names else {"l1_ratio": 1.0}
    mixed = {"penalty": "elasticnet", "l1_ratio": 0.5} if "multi_class" in names else {"l1_ratio": 0.5}
    for penalty in (l1, mixed):
        with pytest.raises(InputError, match=r"L1 penalty has no Hessian"):
            extract(LogisticRegression(solver="saga", **penalty).fit(x, y), (x, y))
    network = MLPRegressor(hidden_layer_sizes=(2,), max_iter=3).fit(x, t)
    network.loss = "poisson"
    with pytest.raises(InputError, match=r"only 'squared_error'"):
        extract(network, (x, t))
    with pytest.raises(InputError, match=r"model: this LogisticRegression is not fitted"):
        extract(LogisticRegression(), (x, y))
    with pytest.raises(InputError, match=r"targets: 9 in rows 0, 1, .* is not a class of the model"):
        extract(fitted, (x, np.full(N, 9)))
    with pytest.raises(InputError, match=r"data: a scikit-learn model needs its training data as \(X, y\)"):
        extract(fitted, x)
    with pytest.raises(InputError, match=r"data: pass the training data"):
        extract(fitted)
    with pytest.raises(InputError, match=r"weight_decay: it is for torch modules"):
        extract(fitted, (x, y), Objective(weight_decay=0.1))
    with pytest.raises(InputError, match=r"model: expected a torch Module"):
        extract("model.pt", (x, y))
