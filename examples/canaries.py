"""Canaries for an audit: chosen from one trained model, against random ones.

An audit inserts canaries, each with probability ½, trains, attacks, and turns the attack's success into a lower bound
on ε. Here on a softmax classifier of digits, four ways of choosing 60 canaries from the same held-out records:

    random             records as they are, with their own labels
    random mislabelled the same records with the label that the model finds least likely
    most exposed       mislabelled, those with the largest predicted shift, each on its own: many are alike
    chosen             noshadow.canaries: mislabelled, exposed and diverse, from one model trained without canaries

Each is audited by LiRA over 48 models, which also hold a random half of the training records each. Run it with

    python examples/canaries.py

It takes less than a minute on a laptop and needs no download.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import noshadow
from noshadow import attacks

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CONFIDENCE = 0.95
RIDGE = 1.0


def train(x: Floats, y: Ints) -> LogisticRegression:
    """A softmax classifier; scikit-learn's ridge is 1/C and leaves the bias out."""
    return LogisticRegression(C=1.0 / RIDGE, max_iter=1000).fit(x, y)


def layer_of(model: LogisticRegression, x: Floats, y: Ints) -> noshadow.LastLayer:
    """What noshadow looks at: the inputs of the last layer, its outputs, the labels."""
    return noshadow.LastLayer(x, model.decision_function(x), y, head="softmax", ridge=RIDGE, penalize_bias=False)


def audit(base: tuple[Floats, Ints], canaries: tuple[Floats, Ints], n_models: int, seed: int) -> attacks.AttackResult:
    """LiRA on canaries that are in each of the models with probability ½."""
    rng = np.random.default_rng(seed)
    inside = rng.random((n_models, len(canaries[0]))) < 0.5
    outputs = []
    for members in inside:
        half = rng.random(len(base[0])) < 0.5
        x, y = (np.concatenate([own[half], new[members]]) for own, new in zip(base, canaries, strict=True))
        outputs.append(train(x, y).decision_function(canaries[0]))
    signal = attacks.signal(np.stack(outputs), canaries[1], "softmax")
    return attacks.lira(signal, inside, progress=False)


def compare(n_canaries: int = 60, n_models: int = 48, seed: int = 0) -> dict[str, attacks.AttackResult]:
    """The audit with each kind of canaries."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = x[order] / 16.0, y[order].astype(np.int64)
    base, held_out = (x[:1000], y[:1000]), (x[1000:], y[1000:])
    model = train(*base)
    layer, candidates = layer_of(model, *base), layer_of(model, *held_out)

    some = np.random.default_rng([seed, 1]).choice(len(held_out[0]), n_canaries, replace=False)
    unlikely = model.decision_function(held_out[0]).argmin(1)
    exposed, chosen = (
        noshadow.canaries(layer, n_canaries, candidates=candidates, diverse=diverse, seed=seed)
        for diverse in (False, True)
    )
    kinds = {
        "random": (held_out[0][some], held_out[1][some]),
        "random mislabelled": (held_out[0][some], unlikely[some]),
        "most exposed": (held_out[0][exposed.rows], exposed.targets),
        "chosen": (held_out[0][chosen.rows], chosen.targets),
    }
    return {name: audit(base, canaries, n_models, seed) for name, canaries in kinds.items()}


def main() -> None:
    print(f"{'canaries':20} {'success rate':>12} {'AUC':>6}   ε at least, with {CONFIDENCE:.0%} confidence")
    for name, found in compare().items():
        bound = found.epsilon_lower_bound(confidence=CONFIDENCE)
        print(f"{name:20} {found.success_rate.mean():12.3f} {found.auc:6.3f}   {bound:.2f}")


if __name__ == "__main__":
    main()
