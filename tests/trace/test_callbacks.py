"""The callbacks, called as their trainers call them; real trainers run in test_trace_trainers."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

from noshadow import NoshadowWarning, Trace
from noshadow.errors import MissingExtra
from noshadow.trace.huggingface import TraceCallback

from ..extract.torch.toys import Items, text_model, tokens


def sentences(n=22):
    ids, mask = tokens(n)
    rows = zip(ids, mask, torch.arange(n) % 3, strict=True)
    return Items([{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in rows])


def fit(folder, callback, epochs, model, first=0):
    """The events of a Trainer that saves after every epoch of three steps, and the outputs of every epoch."""
    loader = DataLoader(sentences(), batch_size=8, shuffle=True)
    handler = CallbackHandler([callback], model, None, None, None)
    handler.train_dataloader = loader
    args, control = SimpleNamespace(output_dir=str(folder)), TrainerControl()
    state = TrainerState(global_step=3 * first, is_world_process_zero=True)
    handler.on_train_begin(args, state, control)
    ids, mask = tokens(22)
    outputs = []
    for epoch in range(first, epochs):
        generator = torch.Generator().manual_seed(epoch)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.05 * torch.randn(p.shape, generator=generator))
        state.global_step += 3
        model.train()
        handler.on_epoch_end(args, state, control)
        assert model.training
        model.eval()
        with torch.no_grad():
            outputs.append(model(ids, mask).logits)
        (folder / f"checkpoint-{state.global_step}").mkdir()
        handler.on_save(args, state, control)
    return outputs


def test_events_of_a_trainer_whole_and_resumed(tmp_path):
    whole = TraceCallback()
    outputs = fit(tmp_path, whole, 5, text_model("Bert"))
    by_hand = Trace.from_outputs(torch.stack(outputs), torch.arange(22) % 3, "softmax")
    torch.testing.assert_close(whole.trace.mean_outputs, by_hand.mean_outputs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(whole.trace.lower_quartile, by_hand.lower_quartile, rtol=1e-4, atol=1e-6)
    (tmp_path / "again").mkdir()
    model, begun = text_model("Bert"), TraceCallback()
    fit(tmp_path / "again", begun, 2, model)
    resumed = TraceCallback(Trace())
    fit(tmp_path / "again", resumed, 5, model, first=2)
    assert resumed.trace.epochs == 5
    assert torch.equal(resumed.trace.mean_outputs, whole.trace.mean_outputs)
    assert torch.equal(resumed.trace.upper_quartile, whole.trace.upper_quartile)


def test_a_checkpoint_without_a_trace_is_told(tmp_path):
    (tmp_path / "checkpoint-3").mkdir()
    with pytest.warns(NoshadowWarning, match=r"goes on from step 3, and .* the epochs before are missing"):
        fit(tmp_path, TraceCallback(), 2, text_model("Bert"), first=1)


def test_a_checkpoint_that_was_left_before_its_epoch_was_remembered_is_told(tmp_path):
    fit(tmp_path, TraceCallback(), 1, text_model("Bert"))
    (tmp_path / "checkpoint-3").rename(tmp_path / "checkpoint-6")  # as of step 6, without the second epoch
    state = TrainerState(global_step=6, epoch=2.0, is_world_process_zero=True)
    args, callback = SimpleNamespace(output_dir=str(tmp_path)), TraceCallback()
    with pytest.warns(NoshadowWarning, match=r"goes on after 2 epochs, and the trace in the checkpoint holds 1"):
        callback.on_train_begin(args, state, TrainerControl())
    state.epoch = 1.5
    callback.on_train_begin(args, state, TrainerControl())


@pytest.mark.parametrize(
    ("module", "absent", "extra"),
    [("huggingface", ["transformers"], "hf"), ("lightning", ["lightning.pytorch", "pytorch_lightning"], "lightning")],
)
def test_an_absent_trainer_gives_the_command_that_installs_it(monkeypatch, module, absent, extra):
    monkeypatch.delitem(sys.modules, f"noshadow.trace.{module}", raising=False)
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'noshadow\[{extra}\]'"):
        importlib.import_module(f"noshadow.trace.{module}")
