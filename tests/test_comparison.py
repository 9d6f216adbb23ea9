"""What a rerun and held-out records are checked for: two runs of one recipe, and records that nobody trained on."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, make_classification
from sklearn.linear_model import LogisticRegression, Ridge

import noshadow
from noshadow import InputError, LastLayer, NoshadowWarning, score


def trained(x, y, seed, epochs, outputs):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, outputs))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            found = model(x[batch])
            loss = (found[:, 0] - y[batch]).square().mean() if outputs == 1 else None
            (torch.nn.functional.cross_entropy(found, y[batch]) if loss is None else loss).backward()
            optimizer.step()
    return model


def halved(load, values):
    x, y = load(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32) if values else torch.tensor(y)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    half = len(x) // 2
    return (x[order[:half]], y[order[:half]]), (x[order[half:]], y[order[half:]])


@pytest.fixture(scope="module", params=[2, 1], ids=["classes", "values"])
def recipe(request):
    members, others = halved(load_diabetes if request.param == 1 else load_breast_cancer, request.param == 1)
    full = [trained(*members, seed, 60, request.param) for seed in (0, 1)]
    return full, trained(*members, 2, 3, request.param), members, others


def told(model, members, **about):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)
        return noshadow.audit(model, members, optimizer="adam", **about).notes


def test_a_rerun_of_three_epochs_is_told_of(recipe):
    (model, rerun), short, members, others = recipe
    note = "rerun: it fits the training records far "
    assert not [one for one in told(model, members, rerun=rerun, held_out=others) if one.startswith(note)]
    if model[-1].out_features == 1:  # of values three epochs leave nothing of the gap
        with pytest.raises(InputError, match="pass a model trained on the same records, and for as long"):
            told(model, members, rerun=short, held_out=others)
        return
    (worse,) = [one for one in told(model, members, rerun=short, held_out=others) if one.startswith(note)]
    assert "far worse than the model does" in worse
    (better,) = [one for one in told(short, members, rerun=rerun, held_out=others) if one.startswith(note)]
    assert "far better than the model does" in better


def test_a_rerun_of_values_that_is_half_trained_is_told_of():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(600, 5)), generator.normal(size=600)
    noise = generator.normal(size=(2, 600))

    def layers(run, member_error):
        z = y + noise[run] * np.where(np.arange(600) < 300, member_error, 1.0)
        return [LastLayer(x[part], z[part], y[part], "squared") for part in (slice(300), slice(300, None))]

    note = "rerun: it fits the training records far"
    for errors, words in (((0.3, 0.8), "worse"), ((0.8, 0.3), "better"), ((0.1, 0.3), None), ((0.3, 0.1), None)):
        (members, held), again = layers(0, errors[0]), layers(1, errors[1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoshadowWarning)
            notes = noshadow.audit(members, rerun=again, held_out=held).notes
        assert [one.split()[7] for one in notes if one.startswith(note)] == ([words] if words else [])


@pytest.mark.parametrize("count", [1, 60])
def test_members_among_held_out_records_are_told_of(recipe, count):
    (model, rerun), _, members, others = recipe
    pairs = list(zip(members, others, strict=True))
    mixed = tuple(torch.cat([theirs[:7], ours[40 : 40 + count], theirs[7:]]) for ours, theirs in pairs)
    notes = told(model, members, rerun=rerun, held_out=mixed)
    total = len(others[0]) + count
    rows = "row 7 " if count == 1 else "rows 7, 8, 9 "
    said = f"held_out: {count} of its {total} records are training records, first {rows}(counted from 0), or the same"
    assert [note for note in notes if note.startswith(said)]
    clean = told(model, members, rerun=rerun, held_out=others)
    assert not [note for note in clean if "training records, first" in note]


def test_a_table_that_repeats_itself_is_left_alone():
    """Eight different rows in all: every held-out record has its like among the members."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 2, size=(400, 3)).astype(float)
    y = (x[:, 0] + generator.normal(size=400) > 0.5).astype(int)
    model = LogisticRegression(tol=1e-10).fit(x[:200], y[:200])
    noshadow.audit(model, (x[:200], y[:200]), held_out=(x[200:], y[200:]))
    distinct = generator.normal(size=(400, 3))
    model = LogisticRegression(tol=1e-10).fit(distinct[:200], y[:200])
    with pytest.raises(InputError, match="held_out: 150 of its 200 records are training records, first rows 0, 1, 2 "):
        noshadow.audit(model, (distinct[:200], y[:200]), held_out=(distinct[50:250], y[50:250]))


@pytest.mark.parametrize("estimator", [LogisticRegression(tol=1e-8, max_iter=5000), Ridge(alpha=0.1)])
def test_weights_that_were_not_told_are_asked_for(estimator):
    x, y = (load_breast_cancer if isinstance(estimator, LogisticRegression) else load_diabetes)(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    weights = np.random.default_rng(0).uniform(0.5, 1.5, len(x))
    said = "model: it is not at the optimum of its objective on these records"
    estimator.fit(x, y, sample_weight=weights)
    with pytest.warns(NoshadowWarning, match=rf"{said}.*pass the sample_weight= that it was fitted with"):
        noshadow.audit(estimator, (x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoshadowWarning)
        noshadow.audit(estimator, (x, y), sample_weight=weights)
        layer = noshadow.last_layer(estimator, (x, y))
    with pytest.warns(NoshadowWarning, match=said):
        score(layer)
    plain = LastLayer(layer.features, layer.outputs, layer.targets, layer.head, layer.ridge, penalize_bias=False)
    with warnings.catch_warnings():  # arrays may be the last layer of a network, which stops where it stops
        warnings.simplefilter("error", NoshadowWarning)
        score(plain)


@pytest.fixture(scope="module")
def small():
    """Two hundred members of noisy classes: too few for the gap of the losses alone to be certain."""
    x, y = make_classification(
        401, 10, n_informative=6, n_classes=3, n_clusters_per_class=1, flip_y=0.1, random_state=3
    )
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    return x, y, trained(x[:201], y[:201], 0, 25, 3)


def rerun_on(small, rows, seed=1):
    x, y, model = small
    again = trained(x[rows], y[rows], seed, 25, 3)
    return told(model, (x[:201], y[:201]), rerun=again, held_out=(x[201:], y[201:]))


def test_a_rerun_of_other_records_is_refused_or_told_of(small):
    fits = "rerun: unlike the model, it fits the training records no better than the held-out ones"
    for seed in range(1, 5):
        assert not [note for note in rerun_on(small, slice(201), seed) if note.startswith("rerun")]
    with pytest.raises(InputError, match=f"^{fits}; pass a model trained on the same records"):
        rerun_on(small, slice(201, None))
    with pytest.raises(InputError, match=f"^{fits}; pass a model trained on the same records"):
        rerun_on(small, slice(None))  # it has seen the held-out records


@pytest.mark.parametrize(("count", "refused"), [(30, False), (120, True)])
def test_the_gap_of_a_rerun_is_compared_record_by_record(count, refused):
    """The model's gap is 1 and 2 standard errors, what the rerun lacks of it 4 and 8."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(2, count, 3)), generator.normal(size=(2, count))
    noise, seed = generator.normal(size=count), 0.02 * generator.normal(size=(2, count))

    def side(part, error):
        return LastLayer(x[part], y[part] + error, y[part], "squared")

    members, held = side(0, 0.8 * noise), side(1, noise[::-1])
    again = side(0, noise + seed[0]), side(1, noise[::-1] + seed[1])
    fits = "rerun: unlike the model, it fits the training records no better than the held-out ones"
    with pytest.raises(InputError, match=fits) if refused else pytest.warns(NoshadowWarning, match=rf"{fits} \(losses"):
        noshadow.audit(members, rerun=again, held_out=held)


def test_a_rerun_that_is_a_rounded_copy_is_told_of(small):
    x, y, model = small
    copy = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    copy.load_state_dict({name: value.to(torch.bfloat16) for name, value in model.state_dict().items()})
    notes = told(model, (x[:201], y[:201]), rerun=copy, held_out=(x[201:], y[201:]))
    assert [note for note in notes if note.startswith("rerun: it gives all but the same outputs as the model")]


def test_one_member_is_not_taken_for_every_record_of_its_class(small):
    x, y, model = small
    notes = told(model, (x[:1], y[:1]), held_out=(x[201:], y[201:]), rerun=trained(x[:201], y[:201], 1, 25, 3))
    assert not [note for note in notes if "are training records" in note]


def arrays_of(model, data):
    with torch.no_grad():
        outputs = model(data[0])
        return model[:-1](data[0]), outputs, data[1]


def heard(layer, held_out):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoshadowWarning)
        score(layer, spread=(1.0, 1.0), held_out=held_out)
    return [str(one.message) for one in caught if str(one.message).startswith("held_out: ")]


def test_score_checks_held_out_records_as_an_audit_does_and_a_pair_as_far_as_it_can(recipe):
    (model, _), _, members, others = recipe
    head = "squared" if model[-1].out_features == 1 else "softmax"
    x, z, y = arrays_of(model, members)
    u, v, w = arrays_of(model, others)
    layer = LastLayer(x, z, y, head=head)

    def both(rows_in, rows_out, targets=None):
        parts = [torch.cat([a[rows_in], b[rows_out]]) for a, b in ((x, u), (z, v), (y, w))]
        parts[2] = parts[2] if targets is None else targets(parts[2])
        return LastLayer(*parts, head=head), (parts[1], parts[2])

    none, every = slice(0), slice(None)
    for held_out in both(none, every):
        assert not heard(layer, held_out)
    for held_out in both(slice(15), every):
        (note,) = heard(layer, held_out)
        assert f"15 of its {len(w) + 15} records are training records" in note
    for held_out in both(every, none):
        with pytest.raises(InputError, match=r"held_out: .* are training records"):
            score(layer, spread=(1.0, 1.0), held_out=held_out)
    change = (lambda y: y + 100.0) if head == "squared" else (lambda y: y * 0)
    for held_out in both(none, every, change):
        notes = heard(layer, held_out)
        assert any("split one shuffled pool, and prepare both parts alike" in note for note in notes)


def test_held_out_outputs_of_another_number_of_classes_are_refused():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(80, 4))
    layer = LastLayer(x, x @ generator.normal(size=(4, 3)), generator.integers(0, 3, 80), head="softmax", ridge=1.0)
    with pytest.raises(InputError, match="held_out: outputs with 4 columns, but the layer has 3"):
        score(layer, spread=(1.0, 1.0), held_out=(generator.normal(size=(50, 4)), generator.integers(0, 3, 50)))


def test_outputs_of_one_number_that_meet_by_chance_are_no_members():
    """One in a hundred may have the logit and the target of a member; more are told of."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(20_000, 1)).astype(np.float32)
    y = (generator.random(20_000) < 0.5).astype(int)
    layer = LastLayer(x[:10_000], x[:10_000], y[:10_000], head="logistic", ridge=1.0)
    for met in (90, 150):
        x[10_000 : 10_000 + met], y[10_000 : 10_000 + met] = x[:met], y[:met]
        notes = [one for one in heard(layer, (x[10_000:], y[10_000:])) if "training records" in one]
        assert len(notes) == (met > 100)


def test_a_rerun_without_held_out_records_is_used_for_values_and_said_to_go_unused_for_classes(recipe):
    (model, rerun), _, members, _ = recipe
    notes = [one for one in told(model, members, rerun=rerun) if "without held_out= it goes unused" in one]
    if model[-1].out_features == 1:
        assert not notes
        found = noshadow.audit(model, members, optimizer="adam", rerun=rerun)
        assert found.metadata["calibration"]["source"] == "rerun"
        assert "attack_accuracy" in found.table
    else:
        assert len(notes) == 1


@pytest.mark.parametrize(
    ("head", "words"), [("logistic", "rerun: independent labels"), ("squared", "rerun: rates are predicted for one")]
)
def test_a_rerun_of_a_head_without_rates_is_refused_by_its_own_name(head, words):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(50, 4))
    y = generator.normal(size=(50, 3))
    y = (y > 0).astype(int) if head == "logistic" else y
    first, second = (LastLayer(x, x @ generator.normal(size=(4, 3)), y, head=head) for _ in "ab")
    with pytest.raises(InputError, match=words):
        noshadow.audit(first, rerun=second)
