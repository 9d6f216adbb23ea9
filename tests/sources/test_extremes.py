"""What is said of all outputs from the few that are kept while chunks go by is what all of them would say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from noshadow.heads import make_head
from noshadow.sources.extremes import Extremes


@pytest.mark.parametrize("chunk", [5, 20])
@pytest.mark.parametrize("total", [0.6, 1.0, 1.4])
def test_one_row_of_another_sum_tells_logits_from_probabilities(chunk, total):
    """Its entries are neither the smallest nor the largest there are, and its sum may be less than 1 or more."""
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.dirichlet(np.full(4, 0.3), size=20))
    z[11] = total / 4
    y, head, seen = torch.arange(20) % 4, make_head("softmax", 4), Extremes()
    for start in range(0, 20, chunk):
        seen.add(z[start : start + chunk], y[start : start + chunk])
    assert head.concern(*seen.records) == head.concern(z, y)
    assert (head.concern(z, y) is None) == (total != 1.0)
