"""The last-layer Hessian and what is asked of it: leverage blocks, solves, distance from stationarity."""

from noshadow.curvature.dense import DenseCurvature, dense_curvature

__all__ = ["DenseCurvature", "dense_curvature"]
