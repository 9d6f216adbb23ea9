"""The figures of the benchmark: files that open, the same each time, from results with zeros, one target, no images."""

from __future__ import annotations

import copy
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from noshadow.bench import figures
from noshadow.bench.measure import CURVE, Truth
from noshadow.bench.run import Outcome
from noshadow.bench.setting import Pool
from noshadow.errors import MissingExtra

LARGEST = 400_000


def make_result(members=400, deviation=0.05, texts=None, attacks=("lira", "rmia", "shokri"), oracle=None):
    """A result with curves from 0 on; without a deviation it is that of one target."""
    rising = [0.0 if share < 0.003 else share**0.5 for share in CURVE]
    curve = {
        "mean": rising,
        "std": [None if deviation is None else min(deviation, value) for value in rising],
        "first": [0.0] * 24 + [1.0],
    }
    scores = {name: {"curve": curve} for name in (*figures.DRAWN, "entropy")}
    records = [
        {"row": 2 * row, "target": 3.0, "score": 1.0, "lira_success_rate": 0.975}
        | ({} if texts is None else {"text": texts[row % len(texts)]})
        for row in range(10)
    ]
    return {
        "setting": "toy-net",
        "data": "Toy",
        "model": "net",
        "members": members,
        "attacks": {
            attack: {"scores": scores, "ceiling": {"curve": list(CURVE)}, "oracle": oracle} for attack in attacks
        },
        "top": {f"{end} {name}": records for end in ("highest", "lowest") for name in ("influence", "newton")},
    }


def make_outcome(shown=None, **options):
    rng = np.random.default_rng(0)
    n = 800
    rows = np.arange(0, n, 2)
    loss = rng.exponential(size=len(rows))
    loss[:3] = 0.0
    scores = {"loss": loss, "influence": np.where(rng.random(len(rows)) < 0.1, 0.0, loss**2)}
    rate = rng.uniform(0.4, 1.0, n)
    return Outcome(
        make_result(**options),
        Pool(np.zeros((n, 1)), np.zeros(n), shown),
        rows,
        scores,
        Truth(rate, rate, {}, {}, None, 0.0),
    )


def check_files(paths):
    assert [path.suffix for path in paths] == [".png", ".svg"] * (len(paths) // 2)
    for path in paths:
        content = path.read_bytes()
        assert 1_000 < len(content) < LARGEST
        if path.suffix == ".png":
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
            assert content.endswith(b"IEND\xaeB`\x82")
        else:
            assert ElementTree.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
            assert b"<dc:date>" not in content


def test_a_setting_without_images_gets_curves_and_a_scatter(tmp_path):
    made = figures.draw(make_outcome(attacks=("lira",)), tmp_path / "new")
    check_files(made)
    assert sorted(path.stem for path in made[::2]) == ["toy-net-lira", "toy-net-scatter"]
    assert sorted(tmp_path.joinpath("new").iterdir()) == sorted(made)  # nothing temporary is left


def test_a_setting_with_images_shows_them(tmp_path):
    shown = np.random.default_rng(0).integers(0, 256, (800, 8, 8, 3), dtype=np.uint8)
    outcome = make_outcome(shown)
    assert figures.shows_images(outcome)
    check_files(figures.exposed_images(outcome, tmp_path / "images"))
    for other in (None, shown[..., 0], shown.astype(np.float32), np.array(["a sentence"] * 800)):
        assert not figures.shows_images(make_outcome(other))


def test_curves_of_one_target_of_a_tiny_pool_and_of_an_odd_number_of_settings(tmp_path):
    one, tiny = make_result(deviation=None), make_result(members=7)
    one["attacks"]["lira"]["scores"]["network_influence"] = copy.deepcopy(one["attacks"]["lira"]["scores"]["loss"])
    scores = (*figures.DRAWN, "network_influence")
    check_files(figures.recall_curves([one, tiny, one], "lira", tmp_path / "three", scores, titles=["a", "b", "c"]))


def test_the_same_result_gives_the_same_files(tmp_path):
    made = [figures.recall_curves([make_result()], "rmia", tmp_path / name) for name in "ab"]
    for first, second in zip(*made, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_a_perfect_score_is_drawn_where_it_was_measured(tmp_path):
    texts = []
    for oracle in (None, {"curve": list(CURVE)}):
        _, svg = figures.recall_curves([make_result(oracle=oracle)], "lira", tmp_path / "curves")
        texts.append(svg.read_text(encoding="utf-8"))
    assert ["a perfect score" in text for text in texts] == [False, True]
    assert all("LiRA again" in text for text in texts)


def test_a_tiny_pool_has_few_points():
    where, shares = figures._distinct(3)
    assert shares.tolist() == [1 / 3, 2 / 3, 1.0]
    kept = [max(1, int(CURVE[index] * 3)) for index in where]
    assert kept == [1, 2, 3]
    assert len(figures._distinct(1_000_000)[0]) == len(CURVE)


def test_what_a_log_axis_cannot_show_lies_on_its_edge():
    assert (figures._clipped([0.0, 0.5, 2.0], np.arange(3)) == [figures._FLOOR, 0.5, 1.0]).all()
    assert (figures._positive(np.array([0.0, -1.0, 2.0, 4.0])) == [2.0, 2.0, 2.0, 4.0]).all()
    assert (figures._positive(np.zeros(3)) == 1.0).all()


def test_sentences_are_shown_as_they_are():
    text = "`` lilo & stitch '' | <b>*not* _bold_</b> [x](y) ~~z~~ \\ $5 $6\nnext"
    table = figures.sentences_table(make_result(texts=[text, "long " * 40]))
    lines = table.splitlines()
    assert len(lines) == 12
    escaped = (
        r"\`\` lilo &amp; stitch '' \| &lt;b&gt;\*not\* \_bold\_&lt;/b&gt; \[x\](y) \~\~z\~\~ \\ &#36;5 &#36;6 next"
    )
    assert lines[2] == f"| 1 | {escaped} | 97.5 % | {escaped} | 97.5 % |"
    assert "long…" in lines[3]
    assert figures.sentences_table(make_result()) == ""


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"noshadow\[bench\]"):
        figures.draw(make_outcome(), tmp_path)
    assert list(tmp_path.iterdir()) == []
