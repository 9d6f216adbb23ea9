"""A trace beside a Lightning ``Trainer``."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from noshadow.errors import NoshadowWarning, missing_extra
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

    Examples
    --------
    >>> import lightning.pytorch as pl
    >>> import torch
    >>> from noshadow.trace.lightning import TraceCallback
    >>> class Module(pl.LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.net = torch.nn.Linear(3, 2)
    ...     def forward(self, x):
    ...         return self.net(x)
    ...     def training_step(self, batch, index):
    ...         return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> rows = torch.utils.data.TensorDataset(torch.randn(12, 3), torch.arange(12) % 2)
    >>> quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    >>> callback = TraceCallback()
    >>> trainer = pl.Trainer(max_epochs=2, callbacks=[callback], enable_checkpointing=False, **quiet)
    >>> trainer.fit(Module(), torch.utils.data.DataLoader(rows, batch_size=4))
    >>> callback.trace.epochs, callback.trace.n
    (2, 12)
    """

    def __init__(self, trace: Trace | None = None, data: Any = None) -> None:
        self.trace = Trace() if trace is None else trace
        self._data = data
        self._done: int | None = None  # epochs of the trainer up to the last one that was remembered

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Remember the epoch whose last step the checkpoint is of that training goes on from; tell of missing ones.

        A checkpoint that is written by steps (``every_n_train_steps``) comes before the end of the epoch: the trace in
        it lacks the epoch, and the weights in it are those after it.
        """
        done = trainer.current_epoch
        if self._done == done - 1:
            self._remember(trainer, pl_module, done)
            return
        self._done = done
        if done and not self.trace.epochs:
            warnings.warn(
                f"trace: training goes on after {done} epochs from a checkpoint without a trace: the epochs before "
                "are missing from the trace. Pass TraceCallback(Trace.load(…)) with the trace of those epochs",
                NoshadowWarning,
                stacklevel=2,
            )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Remember the epoch."""
        self._remember(trainer, pl_module, trainer.current_epoch + 1)

    def _remember(self, trainer: Any, pl_module: Any, done: int) -> None:
        self.trace.update(pl_module, trainer.train_dataloader if self._data is None else self._data)
        self._done = done

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoints."""
        return {**self.trace.state_dict(), "done": self._done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.trace.load_state_dict(state_dict)
        self._done = state_dict.get("done")
