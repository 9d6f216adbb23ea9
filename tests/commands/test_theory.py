"""``noshadow theory`` as a user runs it."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from noshadow import theory
from noshadow.commands.render import braille_plot
from noshadow.commands.theory import theory_app

POINT = ["--leverage", "2.5", "--error", "1", "--n", "15", "--p", "5"]


def run(*arguments):
    return CliRunner().invoke(theory_app, list(arguments))


def test_figures_and_curve_for_people():
    result = run(*POINT)
    assert result.exit_code == 0
    assert "0.0015386" in result.stdout  # the optimal test at .001
    assert "0.00125" in result.stdout
    assert any("⠁" <= character <= "⣿" for character in result.stdout)


def test_json_holds_what_the_functions_say():
    result = run(*POINT, "--sigma", "2", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    point = (2.5, 1.0, 15, 5, 2.0)
    assert found["expected_gap"] == theory.expected_gap(*point)
    assert found["gap_expansion"] == theory.gap_expansion(*point)
    assert found["auc"]["optimal"] == theory.auc(*point, test="optimal")
    assert found["tpr_at_fpr"]["threshold"] == theory.tpr_at_fpr(np.array(found["fpr"]), *point).tolist()
    beta = theory.tradeoff(np.array(found["curve"]["alpha"]), *point, test="optimal")
    np.testing.assert_allclose(found["curve"]["optimal"], beta)


def test_exact_laws_and_sizes_without_a_gap():
    found = json.loads(run("--leverage", "1", "--error", "1", "--n", "7", "--p", "5", "--exact", "--json").stdout)
    assert found["expected_gap"] is None
    assert found["gap_expansion"] is None
    assert found["success_rate"]["threshold"] == theory.success_rate(1.0, 1.0, 7, 5, exact=True)
    assert run("--leverage", "1", "--error", "1", "--n", "7", "--p", "5").exit_code == 0


def test_usage_errors_end_with_two():
    missing = run("--leverage", "1")
    assert missing.exit_code == 2
    assert "--error" in missing.output
    small = run("--leverage", "1", "--error", "1", "--n", "5", "--p", "5", "--json")
    assert small.exit_code == 2
    assert small.stdout == ""
    assert "--n: 5 records cannot fix p = 5 parameters" in small.stderr


def test_figure_is_written_whole(tmp_path):
    result = run("figure", "--output", str(tmp_path), "--json")
    assert result.exit_code == 0
    path = tmp_path / "figure1.png"
    assert json.loads(result.stdout)["figure"] == str(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert run("figure", "--output", str(tmp_path / "one.svg")).exit_code == 0
    assert "<svg" in (tmp_path / "one.svg").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["figure1.png", "one.svg"]


def test_figure_that_cannot_be_made(tmp_path, monkeypatch):
    assert run("figure", "--output", str(tmp_path / "one.xyz")).exit_code == 2
    assert run("figure", "--output", str(tmp_path / "none" / "one.png")).exit_code == 2
    assert run("figure", "--output", "/proc/one.png").exit_code == 3
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("figure", "--output", str(tmp_path / "one.png"))
    assert result.exit_code == 3
    assert "pip install 'noshadow[bench]'" in result.stderr


@pytest.mark.parametrize(("width", "height"), [(10, 4), (56, 16)])
def test_plot_has_its_size_and_its_corners(width, height):
    alpha = np.linspace(0, 1, 50)
    lines = braille_plot(alpha, (1 - alpha) ** 4, width, height).splitlines()
    assert len(lines) == height + 2
    assert all(len(line) == width + 3 for line in lines[:height])
    dots = [[ord(character) - 0x2800 for character in line[3:]] for line in lines[:height]]
    assert dots[0][0] & 0x01  # (0, 1)
    assert dots[-1][-1] & 0x80  # (1, 0)
    assert not any(dots[0][width // 2 :])  # a convex curve leaves the upper right empty
