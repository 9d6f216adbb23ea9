"""Real runs of the trainers of Hugging Face and Lightning with a trace beside them, whole and resumed."""

from __future__ import annotations

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from noshadow import NoshadowWarning, Trace, audit
from noshadow.trace import huggingface, lightning

from ..extract.torch.toys import Items, M, N, network, records, tokens

CLASSES = 3


def sentences(n=22):
    ids, mask = tokens(n)
    labels = torch.randint(0, CLASSES, (n,), generator=torch.Generator().manual_seed(4))
    return Items(
        [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in zip(ids, mask, labels, strict=True)]
    )


def bert(seed=0):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForSequenceClassification(BertConfig(vocab_size=60, num_labels=CLASSES, **sizes))


class KeepAll(TrainerCallback):
    """Every epoch's outputs, whole, by a plain loop over the records."""

    def __init__(self, data):
        self.data, self.outputs = data, []

    def on_epoch_end(self, args, state, control, model=None, **others):
        model.eval()
        with torch.no_grad():
            rows = [model(i["input_ids"][None], i["attention_mask"][None]).logits[0] for i in self.data.items]
        self.outputs.append(torch.stack(rows))
        model.train()


def run_bert(folder, callback, resume=None, epochs=4, more=(), save_strategy="epoch", **options):
    model = bert()
    args = TrainingArguments(
        str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        save_strategy=save_strategy,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        **options,
    )
    trainer = Trainer(model, args, train_dataset=sentences(), callbacks=[*more, *([callback] if callback else [])])
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_a_hugging_face_run_whole_and_resumed(tmp_path):
    data = sentences()
    labels = torch.stack([item["labels"] for item in data.items])
    kept = KeepAll(data)
    whole = huggingface.TraceCallback(Trace())
    trainer = run_bert(tmp_path / "whole", whole, more=[kept])
    by_hand = Trace.from_outputs(torch.stack(kept.outputs), labels, "softmax")
    assert whole.trace.epochs == 4
    for name in ("mean_outputs", "mean_loss", "lower_quartile", "upper_quartile"):
        torch.testing.assert_close(getattr(whole.trace, name), getattr(by_hand, name), rtol=1e-4, atol=1e-5)

    without = run_bert(tmp_path / "without", None)  # a trace changes nothing of the training
    for (name, a), b in zip(trainer.model.state_dict().items(), without.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name

    resumed = huggingface.TraceCallback()
    again = run_bert(tmp_path / "whole", resumed, resume=str(tmp_path / "whole" / "checkpoint-6"))
    assert resumed.trace.epochs == 4
    torch.testing.assert_close(again.model.classifier.weight, trainer.model.classifier.weight)
    for name in ("mean_outputs", "mean_loss", "lower_quartile", "upper_quartile"):
        torch.testing.assert_close(getattr(resumed.trace, name), getattr(whole.trace, name), rtol=1e-6, atol=1e-7)

    found = audit(trainer.model, trainer.get_train_dataloader(), trace=whole.trace)
    np.testing.assert_allclose(found.table["mean_trace"], by_hand.mean_loss, rtol=1e-4, atol=1e-5)
    reread = Trace.from_checkpoints(bert(1), [tmp_path / "whole" / f"checkpoint-{k}" for k in (3, 6, 9, 12)], data)
    torch.testing.assert_close(reread.mean_outputs, whole.trace.mean_outputs, rtol=1e-4, atol=1e-5)


def test_a_resumed_run_without_its_trace_says_so(tmp_path):
    run_bert(tmp_path, None, epochs=1)
    with pytest.warns(NoshadowWarning, match="the epochs before are missing from the trace"):
        run_bert(tmp_path, huggingface.TraceCallback(data=sentences()), str(tmp_path / "checkpoint-3"), epochs=2)


def test_a_hugging_face_run_that_saves_by_steps_keeps_the_epoch_that_ends_there(tmp_path):
    """Three steps an epoch: the checkpoint of step 6 is written before the second epoch is over."""
    by_steps, data = {"save_strategy": "steps", "save_steps": 2}, sentences()
    whole, resumed = huggingface.TraceCallback(data=data), huggingface.TraceCallback(data=data)
    run_bert(tmp_path, whole, **by_steps)
    held = {k: Trace.load(tmp_path / f"checkpoint-{k}" / huggingface.FILE).epochs for k in (2, 4, 6, 8, 10, 12)}
    assert held == {2: 0, 4: 1, 6: 2, 8: 2, 10: 3, 12: 4}
    run_bert(tmp_path, resumed, str(tmp_path / "checkpoint-6"), **by_steps)
    assert resumed.trace.epochs == 4
    torch.testing.assert_close(resumed.trace.mean_outputs, whole.trace.mean_outputs, rtol=1e-6, atol=1e-7)


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class KeepEpochs(pl.Callback):
    """Every epoch's outputs, whole."""

    def __init__(self):
        self.outputs = {}

    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.eval()
        with torch.no_grad():
            self.outputs[trainer.current_epoch] = pl_module(records().tensors[0]).clone()
        pl_module.train()


@pytest.mark.parametrize("saved_after_validation", [False, True])
def test_a_lightning_run_whole_and_resumed(tmp_path, saved_after_validation):
    def run(checkpoint=None):
        pl.seed_everything(0, verbose=False)
        traced, kept = lightning.TraceCallback(Trace()), KeepEpochs()
        saving = pl.callbacks.ModelCheckpoint(
            tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=not saved_after_validation
        )
        trainer = pl.Trainer(
            max_epochs=5,
            callbacks=[traced, kept, saving],
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        module = Module()
        loader = DataLoader(records(), batch_size=16, shuffle=True)
        trainer.fit(module, loader, DataLoader(records(), batch_size=16), ckpt_path=checkpoint)
        return module, traced.trace, kept.outputs

    module, trace, first = run()
    y = records().tensors[1]
    by_hand = Trace.from_outputs(torch.stack(list(first.values())), y, "softmax")
    assert (trace.epochs, trace.n, trace.mean_outputs.shape[1]) == (5, N, M)
    torch.testing.assert_close(trace.mean_outputs, by_hand.mean_outputs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(trace.upper_quartile, by_hand.upper_quartile, rtol=1e-5, atol=1e-6)
    assert "trace_iqr" in audit(module, records(), trace=trace).table

    _, resumed, second = run(tmp_path / "epoch=2.ckpt")
    both = torch.stack(list({**first, **second}.values()))  # epochs 0 … 2 of the first run, the others of the second
    torch.testing.assert_close(resumed.mean_outputs, both.mean(0), rtol=1e-5, atol=1e-6)
    assert resumed.epochs == 5


def test_a_lightning_run_that_saves_by_steps_keeps_the_epoch_that_ends_there(tmp_path):
    loader = DataLoader(records(), batch_size=16)
    steps = len(loader)

    def run(checkpoint=None, traced=True):
        pl.seed_everything(0, verbose=False)
        trace, kept = Trace(), KeepEpochs()
        saving = pl.callbacks.ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1)
        trainer = pl.Trainer(
            max_epochs=4,
            callbacks=[*([lightning.TraceCallback(trace)] if traced else []), kept, saving],
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), loader, ckpt_path=checkpoint)
        return trace, kept.outputs

    _, first = run()
    for step in (steps, 2 * steps, steps - 1, steps + 1):  # at the end of an epoch, and within
        resumed, second = run(tmp_path / f"step={step}.ckpt")
        assert resumed.epochs == 4
        both = torch.stack(list({**first, **second}.values()))  # dropout is drawn anew in the epochs that come after
        torch.testing.assert_close(resumed.mean_outputs, both.mean(0), rtol=1e-5, atol=1e-6)
    for path in tmp_path.iterdir():
        path.unlink()
    run(traced=False)
    with pytest.warns(NoshadowWarning, match="goes on after 2 epochs from a checkpoint without a trace: the epochs be"):
        run(tmp_path / f"step={2 * steps}.ckpt")
