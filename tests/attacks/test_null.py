"""Where nothing leaks every attack guesses: success rates of ½, whatever the splits and the models with a record.

Records differ in difficulty far more than the models differ in what they say of a record, so that an attack could
recognise a record and remember on which side it has seen it: the null that gives references away that are not fair.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from noshadow import attacks
from noshadow.attacks.counterpart import counterparts
from noshadow.shadow import ModelKey, Plan
from tests.attacks.definitions import balanced_rates, counterpart, half_splits

ATTACKS = {
    **{
        f"lira {variant} {variance}": lambda z, m, y, v=variant, s=variance: attacks.lira(phi(z, y), m, v, s)
        for variant in ("online", "offline", "offline_two_sided")
        for variance in ("fixed", "per_sample")
    },
    "rmia online": lambda z, m, y: attacks.rmia(phi(z, y), m),
    "rmia offline": lambda z, m, y: attacks.rmia(phi(z, y), m, variant="offline"),
    **{
        f"threshold {name}": lambda z, m, y, s=name: attacks.threshold(z, m, y, "softmax", s)
        for name in ("loss", "class_loss", "entropy", "output_gradient_norm")
    },
}
SHOKRI = {
    "shokri logistic": lambda z, m, y: attacks.shokri(z, m, y, "softmax", "logistic", folds=8),
    "shokri boosting": lambda z, m, y: attacks.shokri(z, m, y, "softmax", "boosting", folds=4),
}


def phi(z, y):
    return attacks.signal(z, y, "softmax")


def planned(rng, n_models, n_records):
    plan = Plan(n_records, int(rng.integers(2**32)))
    return np.stack([plan.mask(ModelKey("shadow", k)) for k in range(n_models)])


def in_half_of_the_models(rng, n_models, n_records):
    """Every record in exactly half of the models: splits that give the left-out model away."""
    return np.stack([rng.permutation(n_models) < n_models // 2 for _ in range(n_records)], 1)


def null_study(splits, n_models, n_records, seed):
    """Logits that know nothing of membership, and classes: a strong effect of the record, some of the model, noise."""
    rng = np.random.default_rng(seed)
    membership = splits(rng, n_models, n_records)
    targets = rng.integers(0, 3, n_records)
    record = 2.0 * rng.normal(size=(n_records, 3)) + 2.0 * np.eye(3)[targets]
    noise = rng.uniform(0.06, 0.45, n_records)[:, None] * rng.normal(size=(n_models, n_records, 3))
    return record + 0.2 * rng.normal(size=(n_models, 1, 3)) + noise, membership, targets


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize(("n_models", "studies"), [(16, 60), (24, 40)])
def test_null_success_rates_are_one_half(name, n_models, studies):
    """With the target alone left out: LiRA .492, class thresholds .488 of 16 models (standard error here .0015)."""
    results = [ATTACKS[name](*null_study(planned, n_models, 120, seed)) for seed in range(studies)]
    assert np.mean([r.success_rate.mean() for r in results]) == pytest.approx(0.5, abs=0.005)
    assert np.mean([r.balanced_accuracy for r in results]) == pytest.approx(0.5, abs=0.008)


@pytest.mark.parametrize("name", SHOKRI)
def test_null_success_rates_of_classifiers_are_one_half(name):
    """With the target alone left out .473, and with blocks of 16 models .436 (standard error here .004)."""
    results = [SHOKRI[name](*null_study(planned, 16, 60, seed)) for seed in range(8)]
    assert np.mean([r.success_rate.mean() for r in results]) == pytest.approx(0.5, abs=0.012)


@pytest.mark.parametrize("name", ["lira online per_sample", "rmia offline", "threshold class_loss"])
def test_a_users_own_splits_do_not_bias_success_rates_either(name):
    """Each record in exactly half of the 16 models: class thresholds had .479."""
    results = [ATTACKS[name](*null_study(in_half_of_the_models, 16, 100, seed)) for seed in range(40)]
    assert np.mean([r.success_rate.mean() for r in results]) == pytest.approx(0.5, abs=0.007)


def test_success_rates_do_not_follow_the_number_of_models_that_have_a_record():
    """Losses of very different spread and one variance for all: LiRA calls quiet records members in every model.

    The share of the 24 models decided right is then the share that has the record.
    """
    plain, balanced = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        membership = planned(rng, 24, 400)
        spread = np.exp(rng.normal(size=400))
        loss = np.square(spread * (1.0 + 0.5 * rng.normal(size=membership.shape)) * np.where(membership, 0.8, 1.0))
        result = attacks.lira(loss, membership, variance="fixed", members="lower")
        count = membership.sum(0)
        plain.append(np.corrcoef(((result.decisions > 0) == membership).mean(0), count)[0, 1])
        balanced.append(np.corrcoef(result.success_rate, count)[0, 1])
    assert np.mean(plain) > 0.4
    assert abs(np.mean(balanced)) < 0.05


def test_counterparts_are_the_models_of_the_same_place_on_the_other_side():
    membership = half_splits(np.random.default_rng(3), 11, 40, fewest=1)
    found = counterparts(torch.from_numpy(membership)).numpy()
    for k, i in np.ndindex(*membership.shape):
        assert found[k, i] == counterpart(membership, k, i)
    assert (np.take_along_axis(membership, found, 0) != membership).all()


@pytest.mark.parametrize("size", [2, 16])
def test_a_counterpart_is_of_the_same_block(size):
    """Of complementary pairs the other one, of blocks with each record in half of the models one of the block."""
    rng = np.random.default_rng(4)
    blocks = [in_half_of_the_models(rng, size, 30) for _ in range(64 // size)]
    found = counterparts(torch.from_numpy(np.concatenate(blocks))).numpy()
    np.testing.assert_array_equal(found // size, np.broadcast_to(np.arange(64)[:, None] // size, found.shape))


@pytest.mark.parametrize("n_folds", [2, 4, 16])
def test_an_attack_that_only_counts_is_right_half_of_the_time(n_folds):
    """The worst there is: it knows every record and calls it what most of the models it has seen say.

    With the target's fold alone left out it is right .40 to .43 of the time.
    """
    rng = np.random.default_rng(5)
    membership = half_splits(rng, 16, 20_000, fewest=2)
    beside = counterparts(torch.from_numpy(membership)).numpy()
    fold = rng.permutation(16) % n_folds
    rates = []
    for fair in (False, True):
        vote = np.empty(membership.shape)
        for f in range(n_folds):
            seen = np.repeat(fold[:, None] != f, membership.shape[1], axis=1)
            if fair:
                seen[beside[fold == f], np.arange(membership.shape[1])] = False
            vote[fold == f] = (1 + np.sign((seen & membership).sum(0) - (seen & ~membership).sum(0))) / 2
        rates.append(balanced_rates(vote, membership).mean())
    assert rates[0] < 0.44
    assert rates[1] == pytest.approx(0.5, abs=0.005)
