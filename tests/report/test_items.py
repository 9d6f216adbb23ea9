"""What is shown of a record: texts, and images that any reader of PNG reads back."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from noshadow import InputError
from noshadow.report.items import LONGEST, WIDEST, item


def decoded(shown):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(shown.image.removeprefix("data:image/png;base64,")))))


def test_images_read_back():
    rng = np.random.default_rng(0)
    grey, colour = rng.integers(0, 256, (9, 13), dtype=np.uint8), rng.integers(0, 256, (7, 5, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decoded(item(grey)), grey)
    np.testing.assert_array_equal(decoded(item(colour)), colour)
    np.testing.assert_array_equal(decoded(item(np.moveaxis(colour, 2, 0))), colour)
    np.testing.assert_array_equal(decoded(item(Image.fromarray(colour))), colour)
    np.testing.assert_array_equal(decoded(item(torch.tensor([[0.0, 0.5], [1.0, 0.0]]))), [[0, 128], [255, 0]])


def test_large_images_become_small():
    large = np.kron(np.array([[0, 200], [100, 50]], dtype=np.uint8), np.ones((100, 150), dtype=np.uint8))
    small = decoded(item(large))
    assert max(small.shape) <= WIDEST
    assert (small[0, 0], small[0, -1], small[-1, 0], small[-1, -1]) == (0, 200, 100, 50)


def test_texts_are_cut():
    assert item("one\ntwo").text == "one two"
    assert len(item("x" * 5000).text) == LONGEST
    assert item(3.5).text == "3.5"
    assert item(None) is None


@pytest.mark.parametrize("value", [np.zeros((2, 2, 2, 2)), np.array(["a"]), {"a": 1}, [[1, 2], [3]], np.zeros((0, 3))])
def test_what_is_neither_is_refused(value):
    with pytest.raises(InputError, match=r"show: "):
        item(value)
