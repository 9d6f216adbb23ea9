"""A trace beside a Hugging Face ``Trainer``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from noshadow.errors import NoshadowWarning, missing_extra
from noshadow.trace.trace import Trace

__all__ = ["FILE", "TraceCallback"]

try:
    from transformers import TrainerCallback
except ImportError:
    raise missing_extra("transformers", "hf") from None

FILE = "noshadow_trace.safetensors"


class TraceCallback(TrainerCallback):
    """Updates a trace after each epoch, keeps it in every checkpoint and takes it back when training is resumed.

    Parameters
    ----------
    trace : Trace, optional
        None: a new one, ``callback.trace``.
    data : Dataset or DataLoader, optional
        The training data in their order; None: those of the trainer, with its collator.

    Examples
    --------
    >>> import noshadow, tempfile, torch
    >>> from noshadow.trace.huggingface import TraceCallback
    >>> from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    >>> model = BertForSequenceClassification(BertConfig(vocab_size=20, num_labels=2, **sizes))
    >>> data = [{"input_ids": torch.randint(1, 20, (4,)), "labels": torch.tensor(row % 2)} for row in range(12)]
    >>> how = {"num_train_epochs": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    >>> callback = TraceCallback()
    >>> trainer = Trainer(model, TrainingArguments(tempfile.mkdtemp(), **how), train_dataset=data, callbacks=[callback])
    >>> _ = trainer.train()
    {'train_runtime': ...}
    >>> noshadow.audit(model, trainer.get_train_dataloader(), trace=callback.trace).metadata["trace"]
    'mean outputs'
    """

    def __init__(self, trace: Trace | None = None, data: Any = None) -> None:
        self.trace = Trace() if trace is None else trace
        self._data = data

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Take back what the checkpoint holds that training goes on from."""
        if not state.global_step:
            return
        path = _folder(args, state) / FILE
        if path.is_file():
            self.trace.resume(path)
            self._require_every_epoch(int((state.epoch or 0.0) + 1e-6))
        elif not self.trace.epochs:
            warnings.warn(
                f"trace: training goes on from step {state.global_step}, and {path} is not there: the epochs before "
                "are missing from the trace. Pass TraceCallback(Trace.load(…)) with the trace of those epochs",
                NoshadowWarning,
                stacklevel=2,
            )

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Remember the epoch."""
        self.trace.update(others["model"], others["train_dataloader"] if self._data is None else self._data)
        if (_folder(args, state) / FILE).is_file():  # save_strategy="steps": it was saved before the epoch was over
            self.on_save(args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Keep the trace beside the weights."""
        if state.is_world_process_zero and _folder(args, state).is_dir():
            self.trace.save(_folder(args, state) / FILE)

    def _require_every_epoch(self, done: int) -> None:
        """Tell of a checkpoint of the last step of an epoch that was left before the epoch was remembered."""
        if self.trace.epochs < done:
            warnings.warn(
                f"trace: training goes on after {done} epochs, and the trace in the checkpoint holds "
                f"{self.trace.epochs}: the others are missing from the trace. Go on from another checkpoint, or save "
                "with save_strategy='epoch'",
                NoshadowWarning,
                stacklevel=3,
            )


def _folder(args: Any, state: Any) -> Path:
    """Where the trainer keeps the checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
