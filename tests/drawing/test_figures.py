"""The figures: files that open, the same each time, from arrays with zeros, one target, few records, no images."""

from __future__ import annotations

import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from noshadow.bench.pages import draw_setting
from noshadow.bench.pages.figures import distinct_shares, has_images, recall_panel
from noshadow.bench.result import CURVE
from noshadow.drawing import recall, scatter
from noshadow.drawing.images import image_rows
from noshadow.drawing.recall import recall_curves
from noshadow.drawing.tradeoffs import gap_and_tradeoffs
from noshadow.errors import MissingExtra
from tests.bench.toy_results import ceiling, score_result, toy_result

LARGEST = 400_000


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
    made = draw_setting(toy_result(attacks=("lira",)), tmp_path / "new")
    check_files(made)
    assert sorted(path.stem for path in made[::2]) == ["toy-net-recall", "toy-net-scatter"]
    assert sorted(tmp_path.joinpath("new").iterdir()) == sorted(made)  # nothing temporary is left


def test_images_in_rows_some_of_them_shorter(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    rows = {"the first": [(image, "a") for image in pixels], "the second": [(pixels[0], "b")]}
    check_files(image_rows(rows, "some images", tmp_path / "images"))
    assert has_images(toy_result(images=np.concatenate([pixels, pixels])))
    assert not has_images(toy_result(texts=["a sentence"]))


def test_curves_of_one_target_of_a_tiny_pool_and_of_an_odd_number_of_panels(tmp_path):
    result = toy_result(attacks=("lira",))
    lira = result.lira
    one = replace(lira, scores={"loss": score_result((0.5,), None), "network_influence": score_result((0.5,), None)})
    panels = [
        recall_panel(replace(result, attacks={"lira": one}), "lira", "a", ("loss", "network_influence")),
        recall_panel(replace(result, members=7), "lira", "b"),
        recall_panel(result, "lira", "c"),
    ]
    assert panels[0].lines["loss"].std is None
    assert len(panels[1].shares) == len(panels[1].again) == len(panels[1].lines["loss"].mean) == 5
    check_files(recall_curves(panels, tmp_path / "three"))


def test_the_same_result_gives_the_same_files(tmp_path):
    panels = [recall_panel(toy_result(), "rmia", "RMIA")]
    made = [recall_curves(panels, tmp_path / name) for name in "ab"]
    for first, second in zip(*made, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_a_perfect_score_is_drawn_where_it_was_measured(tmp_path):
    texts = []
    for oracle in (None, ceiling(0.9)):
        panel = recall_panel(toy_result(oracle=oracle), "lira", "a panel")
        _, svg = recall_curves([panel], tmp_path / "curves", "LiRA")
        texts.append(svg.read_text(encoding="utf-8"))
    assert ["a perfect score" in text for text in texts] == [False, True]
    assert all("LiRA again" in text for text in texts)


def test_the_theory_figure_in_every_format(tmp_path):
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.PDF", b"%PDF")):
        path = gap_and_tradeoffs(tmp_path / name, 30, 10)
        assert path.read_bytes().startswith(start)
        assert path.stat().st_size < LARGEST


def test_a_tiny_pool_has_few_points():
    where, shares = distinct_shares(3)
    assert shares.tolist() == [1 / 3, 2 / 3, 1.0]
    kept = [max(1, int(CURVE[index] * 3)) for index in where]
    assert kept == [1, 2, 3]
    assert len(distinct_shares(1_000_000)[0]) == len(CURVE)


def test_what_a_log_axis_cannot_show_lies_on_its_edge():
    assert (recall.clipped([0.0, 0.5, 2.0]) == [recall.FLOOR, 0.5, 1.0]).all()
    assert (scatter.positive(np.array([0.0, -1.0, 2.0, 4.0])) == [2.0, 2.0, 2.0, 4.0]).all()
    assert (scatter.positive(np.zeros(3)) == 1.0).all()


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"noshadow\[bench\]"):
        draw_setting(toy_result(), tmp_path)
    with pytest.raises(MissingExtra, match=r"noshadow\[bench\]"):
        gap_and_tradeoffs(tmp_path / "a.png", 30, 10)
    assert list(tmp_path.iterdir()) == []
