"""What a rerun and held-out records are checked for: two runs of one recipe, and records that nobody trained on."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy import special
from sklearn.datasets import load_breast_cancer, load_diabetes, make_classification
from sklearn.linear_model import LogisticRegression, Ridge

import noshadow
from noshadow import InputError, LastLayer, NoshadowWarning, score
from noshadow.comparison import _note_other_fit


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


def seen_twice(seed, moved_in, moved_out, loss=1.0):
    """Layers of two runs on members and held-out records of two classes: the margin of the second is moved; ``loss``
    makes those members worse that fit badly, and φ only in proportion."""
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=(800, 3)), generator.integers(0, 2, 800)
    margin = 2.0 + 3.0 * np.tile(special.ndtri((np.arange(400) + 0.5) / 400), 2)
    inside = np.arange(800) < 400
    again = np.where(inside, margin - moved_in, margin - moved_out) + 0.1 * generator.normal(size=800)
    again = np.where(inside & (again < 0), loss * again, again)
    return [
        LastLayer(x[rows], (z * (2 * y - 1))[rows, None], y[rows], "logistic")
        for z in (margin, again)
        for rows in (inside, ~inside)
    ]


@pytest.mark.parametrize(
    ("moved", "loss", "said"),
    [
        ((0.45, 0.0), 1.0, False),  # φ 2 and 1.55: apart by less than 1.4
        ((0.8, 0.8), 1.0, False),  # 2 and 1.2, of held-out records too: the last steps may have done it
        ((0.8, 0.65), 1.0, False),
        ((0.8, 0.5), 1.0, True),  # of members alone, by more than a quarter
        ((0.8, -0.5), 1.0, True),
        ((0.8, 1.5), 1.0, False),
        ((0.8, 1.5), 2.0, True),  # losses of members are more than 1.6 times as large
        ((2.5, 2.5), 1.0, True),
    ],
)
def test_a_rerun_is_told_of_where_members_are_moved_by_more_than_last_steps_move_all(moved, loss, said):
    layers = seen_twice(0, *moved, loss)
    for order, word in (((0, 1, 2, 3), "worse"), ((2, 3, 0, 1), "better")):
        members, others, first, second = (layers[place] for place in order)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NoshadowWarning)
            _note_other_fit(members, others, first, second)
        assert [f"far {word} than the model does" in str(one.message) for one in caught] == [True] * said


@pytest.mark.parametrize(
    ("centre", "moved", "said"),
    [
        (-2.3, 0.1, False),  # φ of many classes that were hardly fitted is below 0: 1.4 times −2.3 is less than −2.4
        (-0.8, 0.1, False),
        (0.1, 0.3, False),  # one above 0 and one below
        (2.0, 8.0, True),  # and where the losses are far apart
        (-1.0, 3.0, True),
    ],
)
def test_a_statistic_below_nothing_is_compared_by_losses(centre, moved, said):
    generator = np.random.default_rng(1)
    y = generator.integers(0, 2, 800)
    first = centre + 0.3 * generator.normal(size=800)
    inside = np.arange(800) < 400
    second = np.where(inside, first - moved, first) + 0.01 * generator.normal(size=800)
    layers = [
        LastLayer(np.ones((400, 1)), (z * (2 * y - 1))[rows, None], y[rows], "logistic", bias=False)
        for z in (first, second)
        for rows in (inside, ~inside)
    ]
    for order, word in (((0, 1, 2, 3), "worse"), ((2, 3, 0, 1), "better")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NoshadowWarning)
            _note_other_fit(*(layers[place] for place in order))
        assert [f"far {word} than the model does" in str(one.message) for one in caught] == [True] * said


def test_what_is_refused_of_a_rerun_or_of_held_out_records_is_refused_by_its_name(recipe):
    (model, _), _, members, others = recipe
    with pytest.raises(InputError, match=r"^rerun: expected a torch Module"):
        told(model, members, rerun=model.state_dict(), held_out=others)
    with pytest.raises(InputError, match=r"^held_out: each record must be"):
        told(model, members, held_out=others[0])
    with pytest.raises(InputError, match=r"^data: each record must be"):
        told(model, members[0], held_out=others)
    with pytest.raises(InputError, match=r"^held_out, model: its forward failed on batch 0"):
        told(model, members, held_out=(others[0][:, :-1], others[1]))
    with pytest.raises(InputError, match=r"^rerun: its forward failed on batch 0"):
        told(model, members, rerun=torch.nn.Linear(1, 1), held_out=others)


def run_of_values(lost_in, lost_out):
    """Members and held-out records of a run of regression, and what they lose on average."""
    generator = np.random.default_rng(0)
    x, y, e = generator.normal(size=(2000, 3)), generator.normal(size=2000), generator.normal(size=2000)
    inside = np.arange(2000) < 1000
    z = y + e * np.where(inside, lost_in, lost_out) ** 0.5
    return [LastLayer(x[rows], z[rows], y[rows], "squared") for rows in (inside, ~inside)]


def test_a_rerun_of_values_that_is_thrown_about_by_its_last_steps_is_left_alone():
    """Losses 0.090 and 0.123 of members, 0.13 and 0.17 of held-out records: a share of 0.69 and of 0.72."""
    for again, said in ((run_of_values(0.123, 0.17), 0), (run_of_values(0.123, 0.13), 1)):
        for sides in ((*run_of_values(0.09, 0.13), *again), (*again, *run_of_values(0.09, 0.13))):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", NoshadowWarning)
                _note_other_fit(*sides)
            assert len(caught) == said


def test_a_rerun_is_no_worse_where_it_loses_less_on_all():
    """Held-out records that happen to fit better than members: there is no gap of which it could have lost half."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoshadowWarning)
        _note_other_fit(*run_of_values(1.0, 0.5), *run_of_values(0.9, 0.4))
        _note_other_fit(*run_of_values(0.9, 0.4), *run_of_values(1.0, 0.5))


@pytest.mark.parametrize(("count", "told_of"), [(1, False), (2, False), (4, False), (8, True), (60, True)])
def test_members_among_held_out_records_are_told_of(recipe, count, told_of):
    """From 2 % on: one or two are natural duplicates of a pool that was split as it should be."""
    (model, rerun), _, members, others = recipe
    pairs = list(zip(members, others, strict=True))
    mixed = tuple(torch.cat([theirs[:7], ours[40 : 40 + count], theirs[7:]]) for ours, theirs in pairs)
    total = len(others[0]) + count
    said = f"held_out: {count} of its {total} records are the same as training records in all that is seen of them, "
    said += "first rows 7, 8, 9 (counted from 0): they make"
    found = [note for note in told(model, members, rerun=rerun, held_out=mixed) if "training records in all" in note]
    assert [note.startswith(said) for note in found] == [True] * told_of


@pytest.mark.parametrize("copies", [2, 3])
def test_two_copies_among_a_few_held_out_records_are_no_sign_of_anything(copies):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(90, 3)), generator.integers(0, 2, 90)
    x[60 : 60 + copies], y[60 : 60 + copies] = x[:copies], y[:copies]
    members, others = (LastLayer(x[rows], x[rows, :1], y[rows], "logistic") for rows in (slice(60), slice(60, None)))
    assert bool([note for note in heard(members, others) if "training records in all" in note]) == (copies == 3)


def test_a_table_that_repeats_itself_is_left_alone():
    """Eight different rows in all: every held-out record has its like among the members."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 2, size=(400, 3)).astype(float)
    y = (x[:, 0] + generator.normal(size=400) > 0.5).astype(int)
    model = LogisticRegression(tol=1e-10).fit(x[:200], y[:200])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoshadowWarning)
        noshadow.audit(model, (x[:200], y[:200]), held_out=(x[200:], y[200:]))
    assert not [one for one in caught if "training records in all" in str(one.message)]
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


@pytest.mark.parametrize(("errors", "said"), [(2.5, False), (3.5, True), (4.8, True)])
def test_a_few_held_out_records_beside_many_members_count_as_so_many(errors, said):
    """What the rerun lacks of the gap is uncertain by its 4000 members; 60 held-out records moved alike in both."""
    generator = np.random.default_rng(1)

    def standardised(count):
        drawn = generator.normal(size=count)
        return (drawn - drawn.mean()) / drawn.std(ddof=1)

    lacking = errors / np.sqrt(4000)
    inside, outside = 30.0 + standardised(4000), 30.0 + 1.1 * lacking + standardised(60)
    again, out_again = inside + lacking + standardised(4000), outside + 1e-6 * standardised(60)

    def side(losses):
        return LastLayer(np.arange(len(losses))[:, None] % 7, np.sqrt(losses), np.zeros(len(losses)), "squared")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)
        notes = noshadow.audit(side(inside), rerun=(side(again), side(out_again)), held_out=side(outside)).notes
    assert (
        any(note.startswith("rerun: unlike the model, it fits the training records no better") for note in notes)
        == said
    )


def test_a_rerun_that_is_a_rounded_copy_is_told_of(small):
    x, y, model = small
    copy = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    copy.load_state_dict({name: value.to(torch.bfloat16) for name, value in model.state_dict().items()})
    notes = told(model, (x[:201], y[:201]), rerun=copy, held_out=(x[201:], y[201:]))
    assert [note for note in notes if note.startswith("rerun: it gives all but the same outputs as the model")]


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(("noise", "said"), [(0.3, False), (1e-4, True)])
def test_a_copy_is_told_by_how_far_records_are_apart_whatever_the_unit(unit, noise, said):
    generator = np.random.default_rng(2)
    x, z = generator.normal(size=(200, 3)), generator.normal(size=200)
    y, again = z + generator.normal(size=200), z + noise * generator.normal(size=200)
    model, rerun = (LastLayer(x, unit * one, unit * y, "squared") for one in (z, again))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)
        notes = noshadow.audit(model, rerun=rerun).notes
    assert any(note.startswith("rerun: it gives all but the same outputs as the model") for note in notes) == said


def test_one_member_is_not_taken_for_every_record_of_its_class(small):
    x, y, model = small
    notes = told(model, (x[:1], y[:1]), held_out=(x[201:], y[201:]), rerun=trained(x[:201], y[:201], 1, 25, 3))
    assert not [note for note in notes if "training records" in note]


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
        assert f"15 of its {len(w) + 15} records are the same as training records" in note
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


@pytest.mark.parametrize("swapped", [False, True])
def test_what_is_wrong_with_a_pair_of_held_out_records_is_said_of_them(swapped):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(80, 4)), generator.integers(0, 3, 80)
    z = x @ generator.normal(size=(4, 3))
    held_out = (y[40:], z[40:]) if swapped else (z[40:], y[40:] + 1)
    with pytest.raises(InputError, match="^held_out, " + ("outputs: a softmax" if swapped else "targets: expected")):
        score(LastLayer(x[:40], z[:40], y[:40], ridge=1.0), spread=(1.0, 1.0), held_out=held_out)


@pytest.mark.parametrize("count", [30, 60])
def test_a_few_held_out_records_that_are_all_members_are_refused(count):
    """However many members there are beside them."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(400, 3)), generator.integers(0, 2, 400)
    layer = LastLayer(x, x[:, :1], y, "logistic")
    with pytest.raises(InputError, match=f"held_out: {count} of its {count} records are training records"):
        score(layer, spread=(1.0, 1.0), held_out=LastLayer(x[:count], x[:count, :1], y[:count], "logistic"))


def test_outputs_of_one_number_that_meet_by_chance_are_no_members():
    """Two in a hundred may have the logit and the target of a member; more are told of."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(20_000, 1)).astype(np.float32)
    y = (generator.random(20_000) < 0.5).astype(int)
    layer = LastLayer(x[:10_000], x[:10_000], y[:10_000], head="logistic", ridge=1.0)
    for met in (190, 250):
        x[10_000 : 10_000 + met], y[10_000 : 10_000 + met] = x[:met], y[:met]
        notes = [one for one in heard(layer, (x[10_000:], y[10_000:])) if "training records" in one]
        assert len(notes) == (met > 200)


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


@pytest.mark.parametrize(("noise", "said"), [(0.1, True), (6.0, False)])
def test_two_runs_that_chance_may_have_set_apart_are_left_alone(noise, said):
    """Members are moved by 0.8 of 2 in both; but where single records are thrown about by 6, that may be chance."""
    members, others, first, second = seen_twice(0, 0.8, -0.5)
    thrown = np.random.default_rng(3).choice([-noise, noise], members.n // 2)
    thrown = torch.tensor(np.concatenate([thrown, -thrown[::-1]]))[:, None]  # mean and median stay where they were
    moved = first.outputs + thrown * (2 * first.targets[:, None] - 1)
    again = LastLayer(first.features, moved, first.targets, "logistic")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoshadowWarning)
        _note_other_fit(members, others, again, second)
    assert any("than the model does" in str(one.message) for one in caught) == said
