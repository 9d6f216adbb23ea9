"""Install the wheel into an empty environment and use it there, away from the source tree.

    python tools/try_wheel.py dist    a folder with one wheel and one source distribution

What a new user does first: ``noshadow demo``, then a few lines for each front door, Hugging Face last, as it needs an
extra. Nothing of the repository is on the path. The wheel was built from the source distribution, so that both are
tried.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TORCH = """
import noshadow, torch
x, y = torch.randn(60, 5), torch.arange(60) % 3
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
print(noshadow.audit(model, (x, y), optimizer="adam"))
noshadow.last_layer(model, (x, y), optimizer="adam").save("layer.safetensors")
"""
SKLEARN = """
import noshadow
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
x, y = load_diabetes(return_X_y=True)
audit = noshadow.audit(Ridge(alpha=0.1).fit(x, y), (x, y))
audit.report("audit.html")
print(audit.top(2)[["id", "attack_accuracy"]])
"""
HUGGING_FACE = """
import noshadow, torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification
sizes = dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
model = BertForSequenceClassification(BertConfig(num_labels=2, **sizes)).eval()
words = torch.randint(1, 50, (40, 6))
rows = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": i % 2} for i, row in enumerate(words)]
print(noshadow.audit(model, DataLoader(rows, batch_size=8), optimizer="adamw"))
"""
ARRAYS = """
import noshadow, numpy as np
from noshadow import attacks, theory
x, y = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2
print(noshadow.score(noshadow.LastLayer(x, x[:, 0], y, head="logistic", ridge=1.0)).shape)
print(theory.success_rate(10, 2, 100, 10))
"""


def run(python: Path, *words: str, cwd: Path) -> str:
    """A command in the new environment; what it prints, or the end of everything."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run([python, *words], capture_output=True, text=True, check=False, cwd=cwd, env=clean)
    if ended.returncode:
        raise SystemExit(f"{' '.join(words)[:200]} ended with {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def main(folder: Path) -> None:
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="noshadow-wheel-") as name:
        place = Path(name)
        venv.create(place / "venv", with_pip=True)
        python = place / "venv" / "bin" / "python"
        constraints = str(ROOT / "constraints.txt")
        run(python, "-m", "pip", "install", "--quiet", "--constraint", constraints, str(wheel.resolve()), cwd=place)
        where = run(python, "-c", "import noshadow; print(noshadow.__file__)", cwd=place).strip()
        if not where.startswith(str(place)):
            raise SystemExit(f"the wheel is not what was imported: {where}")
        print(run(python, "-m", "noshadow", "demo", cwd=place))
        for code in (TORCH, SKLEARN, ARRAYS):
            print(run(python, "-c", code, cwd=place), end="")
        print(run(python, "-m", "noshadow", "audit", "layer.safetensors", "-o", "audit", cwd=place))
        extra = f"{wheel.resolve()}[hf]"
        run(python, "-m", "pip", "install", "--quiet", "--constraint", constraints, extra, cwd=place)
        print(run(python, "-c", HUGGING_FACE, cwd=place), end="")
        made = sorted(path.name for path in place.iterdir() if path.name != "venv")
        size = f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB)"
        print(f"{size}, {archive.name}: installed, used; wrote {', '.join(made)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
