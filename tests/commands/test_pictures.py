"""Images as text, within the columns that there are."""

from __future__ import annotations

import numpy as np

from noshadow.commands.pictures import PLAIN, SHADES, drawn, side_by_side


def test_every_pixel_has_its_shade():
    image = np.array([[0.0, 0.25, 0.5, 0.75, 1.0], [1.0, 1.0, 0.0, 0.0, 0.1]])
    assert drawn(image) == [" ░▒▓█", "██   "]
    assert drawn(image, shades=PLAIN) == [" .+#@", "@@   "]
    assert drawn(np.array([[-1.0, 2.0]])) == [SHADES[0] + SHADES[-1]]


def test_a_wider_picture_keeps_its_edges_and_its_middle():
    image = np.array([[0.0, 1.0, 0.0]])
    (line,) = drawn(image, 9)
    assert len(line) == 9
    assert line == line[::-1]
    assert line[4] == "█"
    assert line[0] == line[-1] == " "
    flat = drawn(np.full((3, 4), 0.5), 11)
    assert flat == ["▒" * 11] * 3


def test_pictures_stand_side_by_side_and_wrap():
    one, two = [["ab", "cd"], ["ef", "gh"]]
    assert side_by_side([one, two], ["1", "2"], 6) == ["ab  ef", "cd  gh", "1   2"]
    assert side_by_side([one, two], ["1", "2"], 5) == ["ab", "cd", "1", "", "ef", "gh", "2"]
    assert side_by_side([one, two], ["long", "2"], 10) == [" ab    ef", " cd    gh", "long   2"]
    assert side_by_side([], [], 60) == []
    ten = side_by_side([["x" * 10] * 8] * 10, ["no. 1234"] * 10, 60)
    assert max(map(len, ten)) <= 60
    assert len(ten) == 2 * 9 + 1
