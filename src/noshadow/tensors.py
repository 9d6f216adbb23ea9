"""What users hold, NumPy, pandas, torch or nested lists, as tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noshadow.errors import InputError

__all__ = ["as_floats", "as_tensor"]


def _dense_remedy(values: Any) -> str | None:
    """How to make a dense array of one that is sparse; None: it is not."""
    if isinstance(values, Tensor):
        return ".to_dense()" if values.layout != torch.strided else None
    known = sys.modules.get("scipy.sparse")
    return ".toarray()" if known is not None and known.issparse(values) else None


def as_tensor(values: Any, name: str) -> Tensor:
    """NumPy, pandas, torch or nested lists as a detached tensor on the CPU or a CUDA device."""
    remedy = _dense_remedy(values)
    if remedy is not None:
        raise InputError(f"{name}: expected a dense array, got a sparse one; pass {name}{remedy}")
    if isinstance(values, Tensor):
        tensor = values.detach()
        if tensor.is_meta:
            raise InputError(f"{name}: a tensor on the meta device has no values; load the model's weights first")
        return _signed(tensor if tensor.device.type in ("cpu", "cuda") else tensor.cpu())
    if np.ma.is_masked(values):
        raise InputError(f"{name}: some entries are masked; fill them in, or drop those records")
    array = None
    try:
        array = np.asarray(values)
        if array.dtype == object:
            array = array.astype(np.float64)
        # a copy where torch could not share the memory: reversed strides, read-only or foreign byte order
        return _signed(torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"])))
    except (TypeError, ValueError) as error:
        if array is not None and array.dtype.kind in "US":
            labels = "text; number the classes 0, 1, … as the columns of outputs are"
            reason = labels if name == "targets" else f"{type(values).__name__} of text"
        else:
            reason = f"{type(values).__name__} ({error})"
        raise InputError(f"{name}: expected numbers, got {reason}") from None


def _signed(tensor: Tensor) -> Tensor:
    """Of unsigned integers of more than 8 bits, which torch does not compare: signed, or floats where too large."""
    if tensor.dtype not in (torch.uint16, torch.uint32, torch.uint64):
        return tensor
    whole = tensor.to(torch.int64)
    return tensor.to(torch.float64) if bool((whole < 0).any()) else whole


def as_floats(values: Any, name: str) -> Tensor:
    """A real floating-point tensor of the given precision; integers and booleans become float64."""
    tensor = as_tensor(values, name)
    if tensor.is_complex():
        raise InputError(f"{name}: expected real numbers, got {tensor.dtype}")
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)
