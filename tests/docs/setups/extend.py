"""A layer, and a model of a framework that nobody knows."""

import numpy as np

import noshadow

x = np.random.default_rng(0).normal(size=(40, 3))
y = x @ [1.0, -1.0, 0.5] + 0.1 * np.random.default_rng(1).normal(size=40)
theta = np.linalg.lstsq(x, y, rcond=None)[0][:, None]
layer = noshadow.LastLayer(x, x @ theta, y, head="squared", bias=False)


class Matrix:
    def __init__(self, theta):
        self.theta = theta
