"""A least-squares fit."""

import numpy as np

import noshadow

x = np.random.default_rng(0).normal(size=(60, 3))
y = x @ [1.0, -1.0, 0.5] + np.random.default_rng(1).normal(size=60)
theta = np.linalg.lstsq(np.c_[x, np.ones(60)], y, rcond=None)[0]
layer = noshadow.LastLayer(x, x @ theta[:3] + theta[3], y, head="squared")
