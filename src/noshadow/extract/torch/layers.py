"""Which layers are linear maps of one feature vector per record, and their parameters."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from noshadow.errors import InputError

__all__ = ["coefficients", "is_linear", "is_linear_in", "refuse_quantised"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_QUANTISED = re.compile(r"quantized|quantization|quantlinear|quanttensor|[48]bit|int[48]|gptq|awq|hqq", re.IGNORECASE)


def is_linear(module: nn.Module) -> bool:
    """An nn.Linear, or a 1×1 convolution, which is one at every position."""
    if isinstance(module, nn.Linear):
        return True
    return isinstance(module, _CONVOLUTIONS) and (
        set(module.kernel_size) == {1}
        and module.groups == 1
        and (isinstance(module.padding, str) or not any(module.padding))
    )


def refuse_quantised(name: str, module: nn.Module) -> None:
    """A quantised layer rounds its weights, so it is not the layer that was trained: say which it is."""
    kind = type(module)
    weight = getattr(module, "weight", None)
    plain = isinstance(weight, Tensor) and weight.is_floating_point() and weight.ndim >= 2
    wrapped = isinstance(weight, Tensor) and type(weight) not in (Tensor, nn.Parameter)
    if _QUANTISED.search(f"{kind.__module__}.{kind.__name__}") or (isinstance(module, nn.Linear) and not plain):
        described = f"{kind.__module__}.{kind.__name__}"
    elif wrapped and _QUANTISED.search(type(weight).__name__):
        described = f"{kind.__name__} with a {type(weight).__name__} for weights"
    else:
        return
    raise InputError(
        f"model: its last layer {name!r} is quantised ({described}), so its weights are not those that were trained; "
        "audit the model before it was quantised"
    )


def coefficients(module: nn.Module) -> Tensor:
    """(p, m), or (p + 1, m) with the bias as the last row, so that outputs = [x, 1] · coefficients. On the CPU."""
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    rows = weight.detach().flatten(1).T
    return (rows if not isinstance(bias, Tensor) else torch.cat([rows, bias.detach().unsqueeze(0)])).cpu()


def is_linear_in(x: Tensor, z: Tensor, theta: Tensor) -> bool:
    """z = [x, 1] · θ to rounding, on the device and in the precision that z was made in.

    It fails where a tensor was changed in place after the call, or where the layer does more than that.
    """
    p = x.shape[1]
    theta = theta.to(z.device)
    made = nn.functional.linear(
        x.to(z.dtype), theta[:p].T.to(z.dtype), theta[p].to(z.dtype) if len(theta) > p else None
    )
    wide = torch.float32 if z.element_size() < 4 else z.dtype
    size = x.to(wide).abs() @ theta[:p].to(wide).abs()  # sums are of float32 at least: their rounding is a share of it
    share = 4 * torch.finfo(wide).eps * max(p, 16) ** 0.5
    if z.device.type != "cpu":
        share = max(share, 2.0**-8)  # products may be rounded to ten bits, differently for another shape of kernel
    bound = 8 * torch.finfo(z.dtype).eps * z.to(wide).abs() + share * size + torch.finfo(wide).tiny
    return bool(((made.to(wide) - z.to(wide)).abs() <= bound).all())
