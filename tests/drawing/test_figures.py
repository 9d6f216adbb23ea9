"""The figures: files that open, the same each time, from arrays with zeros, one target, few records, no images."""

from __future__ import annotations

import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from noshadow.bench.pages import draw_setting
from noshadow.bench.pages.figures import DRAWN, distinct_shares, has_images, recall_panel, target_name
from noshadow.bench.result import CURVE, NETWORK
from noshadow.bench.setting import all_settings
from noshadow.drawing import recall, scatter
from noshadow.drawing.canvas import DPI, label_outer, panels
from noshadow.drawing.images import image_rows, wrapped
from noshadow.drawing.palette import SCORES, look_of
from noshadow.drawing.recall import recall_curves
from noshadow.drawing.reliability import reliability_diagrams, shared_limits
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
            with Image.open(path) as opened:
                assert opened.info["dpi"] == pytest.approx((DPI, DPI), abs=0.1)
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


def test_no_two_scores_are_told_apart_by_colour_alone():
    looks = [look_of(name) for name in (*DRAWN, NETWORK)]
    assert set(DRAWN) | {NETWORK} <= set(SCORES)
    assert len({look.marker for look in looks}) == len(looks)
    assert len({(look.colour, look.dash) for look in looks}) == len(looks)
    thick, *others = sorted(SCORES, key=lambda name: -SCORES[name].width)
    assert thick == "exposure"
    assert SCORES[thick].width >= 2 * max(SCORES[name].width for name in others)
    assert look_of("a score of mine").marker not in {look.marker for look in looks}


def with_scores(*names):
    result = toy_result()
    scores = {name: score_result() for name in names}
    return replace(result, attacks={"lira": replace(result.lira, scores=scores)})


def test_what_a_result_lacks_is_left_out_and_the_default_comes_first(tmp_path, monkeypatch):
    whole = ("loss", "newton", "mean_trace", "trace_iqr", "exposure")
    contents = [recall_panel(with_scores(*names), "lira", "a") for names in (("loss", "newton"), whole)]
    assert [list(panel.lines) for panel in contents] == [
        ["newton", "loss"],
        ["exposure", "newton", "loss", "mean_trace", "trace_iqr"],
    ]
    seen = []
    monkeypatch.setattr(recall, "write", lambda figure, path: seen.append(figure))
    recall_curves(contents, tmp_path / "two")
    (figure,) = seen
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels[:2] == ["exposure", "newton"]  # though the first panel has none
    assert set(labels) == {*whole, "the attack again", "a random order"}
    first, second = figure.axes
    assert len(first.collections) == 1  # shaded: newton
    assert len(second.collections) == 2  # and exposure
    top = max(second.lines, key=lambda line: line.get_zorder())
    assert top.get_linewidth() == SCORES["exposure"].width
    for axes in figure.axes:
        assert axes.get_yscale() == "linear"  # 0 is drawn at 0
    assert min(min(line.get_ydata()) for line in first.lines) == 0.0
    figure.draw_without_rendering()  # lays it out
    box, lowest = legend.get_window_extent(), min(axes.get_tightbbox().y0 for axes in figure.axes)
    assert box.y1 <= lowest + 1  # below all panels and what is written at them


def test_panels_fill_their_rows_evenly():
    shapes = {}
    for count, most in ((1, 4), (3, 3), (4, 3), (5, 3), (8, 2)):
        with panels(count, (2.0, 2.0), most) as (figure, found):
            label_outer(found, "x", "y")
            grid = found[0].get_gridspec()
            shapes[count] = (grid.nrows, grid.ncols)
            assert len(figure.axes) == count
            assert sum(axes.get_xlabel() == "x" for axes in found) == grid.ncols
            assert sum(axes.get_ylabel() == "y" for axes in found) == grid.nrows
    assert shapes == {1: (1, 1), 3: (1, 3), 4: (2, 2), 5: (2, 3), 8: (4, 2)}


def test_rates_near_chance_are_not_blown_up_and_all_points_are_inside(tmp_path):
    assert shared_limits([0.5, 0.51], [0.5, 0.5]) == pytest.approx((49.6, 60.4))
    low, high = shared_limits([0.5, 1.0], [0.4, 0.9])
    assert low < 40
    assert 100 < high <= 102
    check_files(reliability_diagrams([("a", (0.5, 0.7), (0.45, 0.9)), ("b", (0.5,), (0.5,))], tmp_path / "rates"))


def test_captions_stay_below_their_image():
    assert wrapped("immature granulocyte\n97.8 %") == "immature\ngranulocyte\n97.8 %"
    assert max(map(len, wrapped("a" * 30).splitlines())) < 15
    names = {name: setting.classes for name, setting in all_settings().items() if setting.classes}
    assert {name: len(found) for name, found in names.items()} == {
        "bloodmnist-probe": 8,
        "cifar10-cnn": 10,
        "cifar100-resnet20": 100,
        "sst2-finetune": 2,
        "sst2-probe": 2,
    }
    assert all(len(set(found)) == len(found) for found in names.values())
    assert (names["cifar100-resnet20"][0], names["cifar100-resnet20"][-1]) == ("apple", "worm")


def test_a_target_is_called_by_its_class_or_shown_as_it_is():
    assert target_name(toy_result(setting="cifar10-cnn"), 3.0) == "cat"
    assert target_name(toy_result(), 3.0) == "class 3"
    assert target_name(toy_result(head="squared"), 3.25) == "3.25"


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
