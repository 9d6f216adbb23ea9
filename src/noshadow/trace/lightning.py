"""A trace beside a Lightning ``Trainer``."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

from noshadow.errors import missing_extra
from noshadow.trace.storage import memory_of, parts_of
from noshadow.trace.trace import Trace

__all__ = ["TraceCallback"]


def _base() -> Any:
    """The callback of Lightning, under either of the names that it is installed by."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise missing_extra("lightning", "lightning")


class TraceCallback(_base()):  # type: ignore[misc]  # known when it runs
    """Updates a trace after each epoch; it is kept in Lightning's own checkpoints and taken back from them.

    Parameters
    ----------
    trace : Trace, optional
        None: a new one, ``callback.trace``.
    data : Dataset or DataLoader, optional
        The training data in their order; None: those of the trainer.

    Notes
    -----
    .. code-block:: python

        trace = noshadow.Trace()
        trainer = Trainer(max_epochs=10, callbacks=[TraceCallback(trace)])
        trainer.fit(module, loader)
        noshadow.audit(module, loader, trace=trace)
    """

    def __init__(self, trace: Trace | None = None, data: Any = None) -> None:
        self.trace = Trace() if trace is None else trace
        self._data = data

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Remember the epoch."""
        self.trace.update(pl_module, trainer.train_dataloader if self._data is None else self._data)

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoints: arrays as tensors, facts as plain values."""
        arrays, facts = parts_of(self.trace._memory)
        return {"arrays": {name: torch.from_numpy(array) for name, array in arrays.items()}, "facts": facts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        arrays = {name: np.asarray(value.cpu()) for name, value in state_dict["arrays"].items()}
        self.trace._resumed(memory_of(arrays, state_dict["facts"]))
