"""The last-layer Hessian and what is asked of it: leverage, shifts of the outputs, distance from stationarity."""

from noshadow.curvature.choose import CURVATURES, DEFAULT_MEMORY, build_curvature, choose
from noshadow.curvature.protocol import Curvature, Leverages, Removal, Size

__all__ = ["CURVATURES", "DEFAULT_MEMORY", "Curvature", "Leverages", "Removal", "Size", "build_curvature", "choose"]
