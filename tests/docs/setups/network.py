"""A small network on digits, its data and its loop; and small models for Hugging Face's and Lightning's trainers."""

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

pixels, digits = load_digits(return_X_y=True)
order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(pixels / 16.0, dtype=torch.float32)[order], torch.tensor(digits)[order]
train_dataset, held_out = TensorDataset(x[:400], y[:400]), (x[400:700], y[400:700])
loader = DataLoader(train_dataset, batch_size=64, shuffle=True)
epochs = 5
_optimizers: dict[int, torch.optim.Optimizer] = {}


def new_model():
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def train_one_epoch(model, loader):
    if id(model) not in _optimizers:
        _optimizers[id(model)] = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.train()
    for inputs, targets in loader:
        _optimizers[id(model)].zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        _optimizers[id(model)].step()


def batches_of_an_epoch():
    for rows in torch.randperm(400).split(100):
        with torch.no_grad():
            yield rows, model(x[rows]), y[rows]


model = new_model()
kept = []
for epoch in range(1, 4):
    train_one_epoch(model, loader)
    torch.save(model.state_dict(), f"epoch{epoch}.pt")
    kept.append(model(x[:400]).detach())
optimizer = _optimizers[id(model)]
logits = torch.stack(kept)
losses = torch.stack([nn.functional.cross_entropy(one, y[:400], reduction="none") for one in kept])

sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
bert = BertForSequenceClassification(BertConfig(vocab_size=40, num_labels=2, **sizes))
sentences = [{"input_ids": torch.randint(1, 40, (6,)), "labels": torch.tensor(row % 2)} for row in range(24)]
arguments = TrainingArguments(
    "bert", num_train_epochs=2, per_device_train_batch_size=8, report_to=[], use_cpu=True, disable_tqdm=True
)
quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = new_model()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


module = Module()
