"""The last-layer Hessian and what is asked of it: leverage, shifts of the outputs, distance from stationarity."""

from noshadow.curvature.choose import CURVATURES, Choice, build_chosen, build_curvature, choose
from noshadow.curvature.iterative import exact_solver
from noshadow.curvature.protocol import Curvature, Leverages, Removal, Size

__all__ = [
    "CURVATURES",
    "Choice",
    "Curvature",
    "Leverages",
    "Removal",
    "Size",
    "build_chosen",
    "build_curvature",
    "choose",
    "exact_solver",
]
