"""The paper's numbers as data: complete, within their ranges, and consistent with one another."""

from __future__ import annotations

import pytest

from noshadow.bench.paper import SETTINGS, TABLE_1, TABLE_4, TABLE_5
from noshadow.scores import SCORES

CLASSIFIERS = {"sst2-finetune", "sst2-probe", "cifar10-cnn", "cifar100-resnet20", "bloodmnist-probe"}
SURROGATES = {"loss", "gradient_norm", "newton", "influence"}
COLUMNS = ["recall@0.1%", "recall@1%", "recall@5%", "spearman"]


def test_every_table_has_the_eight_settings_in_order():
    assert len(set(SETTINGS)) == 8
    for table in (TABLE_1, TABLE_4, TABLE_5):
        assert tuple(table) == SETTINGS


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_surrogates_of_a_setting(setting):
    entropy = {"entropy"} if setting in CLASSIFIERS else set()
    network = {"network_influence"} if setting == "california-mlp" else set()
    assert set(TABLE_1[setting]) == SURROGATES
    assert set(TABLE_5[setting]) == SURROGATES | entropy | network
    assert SURROGATES | entropy <= set(SCORES)
    assert all(list(row) == COLUMNS for row in TABLE_5[setting].values())


@pytest.mark.parametrize("setting", SETTINGS)
def test_means_and_deviations_are_within_their_ranges(setting):
    for mean, std in TABLE_1[setting].values():
        assert 0 <= mean <= 100
        assert 0 <= std <= 100
    for row in TABLE_5[setting].values():
        for column, estimate in row.items():
            if estimate is not None:
                top = 1 if column == "spearman" else 100
                assert 0 <= estimate[0] <= top
                assert 0 <= estimate[1] <= top


def test_dashes():
    dashes = {
        (setting, name, column)
        for setting, rows in TABLE_5.items()
        for name, row in rows.items()
        for column, estimate in row.items()
        if estimate is None
    }
    assert dashes == {
        ("sst2-finetune", "gradient_norm", "spearman"),
        ("sst2-probe", "gradient_norm", "spearman"),
        ("california-mlp", "network_influence", "recall@0.1%"),
    }


@pytest.mark.parametrize("setting", SETTINGS)
def test_keeping_more_recalls_more(setting):
    """Of LiRA's top 1 %, a score's top 5 % holds at least what its top 1 % holds."""
    for name, (recall, _) in TABLE_1[setting].items():
        assert recall >= TABLE_5[setting][name]["recall@1%"][0]


@pytest.mark.parametrize("setting", SETTINGS)
def test_times_add_up(setting):
    times = TABLE_4[setting]
    assert list(times) == ["model", "shadows", "targets", "attacks", "scores", "network_influence"]
    assert times["shadows"] == pytest.approx(200 * times["model"], rel=0.21)  # BloodMNIST's 60 h for 50
    assert times["targets"] == pytest.approx(16 * times["model"], rel=0.13)
    assert times["shadows"] > 1000 * times["scores"]
    assert (times["network_influence"] is not None) == (setting in {"california-mlp", "cifar10-cnn"})
