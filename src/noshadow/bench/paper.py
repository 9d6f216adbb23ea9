"""The paper's numbers, as printed: what a run of its settings is laid beside.

SETTINGS  the eight settings, in the order of the paper's tables
TABLE_1   recall, in percent, of LiRA's top 1 % among the 5 % that a score ranks highest, as (mean, std) over targets
TABLE_4   time in seconds on one V100: ``model`` to train one model, ``shadows`` 200 of them, ``targets`` 16 of them,
          ``attacks`` for LiRA, RMIA, Shokri and the statistics over the 200, ``scores`` and ``network_influence`` for
          one target; None where it was not run
TABLE_5   recall, in percent, of LiRA's top 0.1 %, 1 % and 5 % among as many records of a score's top, and the Spearman
          correlation with LiRA's success rate, as (mean, std) over targets; None where the paper prints a dash

Scores have the names of ``noshadow.scores``: ``entropy`` is the paper's self-entropy, and ``network_influence`` is
∇ℓᵀH⁻¹∇ℓ over all parameters of the network, by conjugate gradients. There are 16 targets.

What to know when comparing:

- The ridge rows show the same numbers for ``loss`` and ``gradient_norm``: the gradient there must be that in the
  output, our ``output_gradient_norm``. ``gradient_norm`` is the one in the last layer's parameters.
- California ridge is a closed-form fit in the paper's text, one linear layer trained with Adam in its tables.
- The full-network row of CIFAR-10 repeats that of California MLP to the last digit; it is left out.
- UCI Energy ranks 307 members, so that its top 1 % are 3 records and its top 0.1 % a single one.
- BloodMNIST has 8,000 records in the paper, which is not the official training split (11,959).
- ``shadows`` of BloodMNIST is printed as 60 h, but 200 models of 15 min are 50 h; and 60 h is 14,400 times the 15 s of
  ``scores``, not the 50,000 times of the text.
- The caption of Table 4 calls the scores' times a total over the targets, its heading and the text those of one target.
"""

from __future__ import annotations

__all__ = ["SETTINGS", "TABLE_1", "TABLE_4", "TABLE_5", "Estimate"]

Estimate = tuple[float, float]
"""Mean and standard deviation over the target models."""

SETTINGS = (
    "sst2-finetune",
    "sst2-probe",
    "california-ridge",
    "california-mlp",
    "cifar10-cnn",
    "cifar100-resnet20",
    "bloodmnist-probe",
    "energy-mlp",
)

TABLE_1: dict[str, dict[str, Estimate]] = {
    "sst2-finetune": {
        "loss": (28.2, 2.4),
        "gradient_norm": (5.3, 1.1),
        "newton": (28.8, 2.6),
        "influence": (28.8, 2.6),
    },
    "sst2-probe": {
        "loss": (10.7, 1.6),
        "gradient_norm": (7.2, 1.9),
        "newton": (8.2, 2.5),
        "influence": (8.9, 1.6),
    },
    "california-ridge": {
        "loss": (12.3, 2.8),
        "gradient_norm": (12.3, 2.8),
        "newton": (13.3, 2.6),
        "influence": (13.2, 2.5),
    },
    "california-mlp": {
        "loss": (52.2, 6.7),
        "gradient_norm": (22.5, 6.9),
        "newton": (74.9, 7.4),
        "influence": (75.5, 7.0),
    },
    "cifar10-cnn": {
        "loss": (53.7, 2.5),
        "gradient_norm": (36.8, 2.5),
        "newton": (62.8, 2.1),
        "influence": (62.2, 2.2),
    },
    "cifar100-resnet20": {
        "loss": (23.5, 1.5),
        "gradient_norm": (12.3, 1.8),
        "newton": (36.8, 5.1),
        "influence": (35.2, 4.6),
    },
    "bloodmnist-probe": {
        "loss": (74.3, 6.4),
        "gradient_norm": (82.3, 3.9),
        "newton": (90.4, 12.7),
        "influence": (87.1, 9.0),
    },
    "energy-mlp": {
        "loss": (12.5, 16.7),
        "gradient_norm": (14.6, 21.0),
        "newton": (33.3, 34.4),
        "influence": (39.6, 32.7),
    },
}

_MINUTE = 60.0
_HOUR = 3600.0

TABLE_4: dict[str, dict[str, float | None]] = {
    "sst2-finetune": {
        "model": 6.0 * _MINUTE,
        "shadows": 20.0 * _HOUR,
        "targets": 1.6 * _HOUR,
        "attacks": 17.0 * _MINUTE,
        "scores": 45.0,
        "network_influence": None,
    },
    "sst2-probe": {
        "model": 19.0 * _MINUTE,
        "shadows": 64.6 * _HOUR,
        "targets": 5.0 * _HOUR,
        "attacks": 18.0 * _MINUTE,
        "scores": 3.0 * _MINUTE,
        "network_influence": None,
    },
    "california-ridge": {
        "model": 1.0 * _MINUTE,
        "shadows": 3.3 * _HOUR,
        "targets": 0.3 * _HOUR,
        "attacks": 7.0 * _MINUTE,
        "scores": 10.0,
        "network_influence": None,
    },
    "california-mlp": {
        "model": 1.0 * _MINUTE,
        "shadows": 3.3 * _HOUR,
        "targets": 0.3 * _HOUR,
        "attacks": 7.0 * _MINUTE,
        "scores": 10.0,
        "network_influence": 20.0 * _MINUTE,
    },
    "cifar10-cnn": {
        "model": 4.0 * _MINUTE,
        "shadows": 13.0 * _HOUR,
        "targets": 1.0 * _HOUR,
        "attacks": 20.0 * _MINUTE,
        "scores": 30.0,
        "network_influence": 2.2 * _HOUR,
    },
    "cifar100-resnet20": {
        "model": 13.0 * _MINUTE,
        "shadows": 44.4 * _HOUR,
        "targets": 3.5 * _HOUR,
        "attacks": 45.0 * _MINUTE,
        "scores": 1.0 * _MINUTE,
        "network_influence": None,
    },
    "bloodmnist-probe": {
        "model": 15.0 * _MINUTE,
        "shadows": 60.0 * _HOUR,
        "targets": 4.0 * _HOUR,
        "attacks": 5.0 * _MINUTE,
        "scores": 15.0,
        "network_influence": None,
    },
    "energy-mlp": {
        "model": 30.0,
        "shadows": 1.7 * _HOUR,
        "targets": 8.0 * _MINUTE,
        "attacks": 30.0,
        "scores": 3.0,
        "network_influence": None,
    },
}


def _row(
    tenth: Estimate | None, one: Estimate | None, five: Estimate | None, spearman: Estimate | None
) -> dict[str, Estimate | None]:
    """A line of Table 5, its columns from left to right."""
    return {"recall@0.1%": tenth, "recall@1%": one, "recall@5%": five, "spearman": spearman}


TABLE_5: dict[str, dict[str, dict[str, Estimate | None]]] = {
    "sst2-finetune": {
        "loss": _row((0.00, 0.00), (5.44, 1.36), (30.83, 1.11), (0.474, 0.022)),
        "gradient_norm": _row((0.00, 0.00), (0.57, 0.18), (4.64, 0.33), None),
        "entropy": _row((0.02, 0.06), (6.34, 1.16), (28.52, 1.10), (0.470, 0.022)),
        "newton": _row((1.02, 1.47), (7.05, 1.23), (31.30, 1.44), (0.389, 0.036)),
        "influence": _row((1.22, 1.54), (6.88, 1.30), (31.28, 1.44), (0.389, 0.036)),
    },
    "sst2-probe": {
        "loss": _row((0.05, 0.08), (2.30, 0.64), (7.94, 0.50), (0.045, 0.005)),
        "gradient_norm": _row((0.00, 0.00), (1.56, 0.70), (6.64, 0.65), None),
        "entropy": _row((0.60, 1.26), (1.07, 0.46), (5.60, 0.34), (0.026, 0.005)),
        "newton": _row((0.00, 0.00), (1.80, 0.87), (6.88, 0.57), (0.037, 0.005)),
        "influence": _row((0.30, 0.94), (2.27, 0.70), (7.01, 0.43), (0.038, 0.005)),
    },
    "california-ridge": {
        "loss": _row((6.33, 7.74), (3.16, 1.81), (8.65, 1.05), (0.033, 0.006)),
        "gradient_norm": _row((6.33, 7.74), (3.16, 1.81), (8.65, 1.05), (0.033, 0.006)),
        "newton": _row((36.44, 15.34), (7.54, 2.50), (9.30, 1.23), (0.050, 0.007)),
        "influence": _row((38.02, 14.64), (7.54, 2.50), (9.30, 1.24), (0.050, 0.007)),
    },
    "california-mlp": {
        "loss": _row((14.90, 9.25), (22.59, 6.49), (23.58, 4.03), (0.276, 0.028)),
        "gradient_norm": _row((0.00, 0.00), (4.53, 2.83), (10.81, 2.26), (0.198, 0.019)),
        "newton": _row((23.95, 11.89), (45.84, 5.54), (33.22, 3.96), (0.297, 0.027)),
        "influence": _row((25.49, 11.97), (46.46, 4.79), (33.46, 3.88), (0.297, 0.027)),
        "network_influence": _row(None, (24.57, 5.55), (23.72, 2.85), (0.266, 0.025)),
    },
    "cifar10-cnn": {
        "loss": _row((4.02, 3.23), (17.30, 2.10), (42.98, 1.17), (0.813, 0.004)),
        "gradient_norm": _row((0.01, 0.05), (8.40, 1.65), (33.52, 1.28), (0.811, 0.003)),
        "entropy": _row((0.78, 1.57), (10.36, 1.33), (38.70, 1.35), (0.808, 0.004)),
        "newton": _row((15.28, 6.95), (25.59, 1.77), (48.14, 1.27), (0.814, 0.003)),
        "influence": _row((14.07, 7.06), (24.48, 1.99), (47.76, 1.31), (0.814, 0.003)),
        # no network_influence: the paper prints the numbers of california-mlp here a second time
    },
    "cifar100-resnet20": {
        "loss": _row((2.26, 2.86), (7.40, 1.80), (20.53, 0.72), (0.658, 0.007)),
        "gradient_norm": _row((0.51, 1.39), (2.68, 0.69), (13.94, 0.93), (0.659, 0.005)),
        "entropy": _row((0.25, 0.99), (3.84, 1.15), (19.75, 1.11), (0.686, 0.007)),
        "newton": _row((4.84, 4.60), (13.51, 2.82), (28.64, 3.15), (0.690, 0.024)),
        "influence": _row((5.77, 3.82), (13.08, 2.66), (28.24, 2.80), (0.689, 0.022)),
    },
    "bloodmnist-probe": {
        "loss": _row((10.55, 10.08), (33.22, 3.72), (59.06, 2.19), (0.600, 0.005)),
        "gradient_norm": _row((10.91, 14.54), (39.95, 4.54), (62.34, 2.07), (0.604, 0.005)),
        "entropy": _row((0.00, 0.00), (14.67, 3.72), (44.45, 2.05), (0.586, 0.005)),
        "newton": _row((34.70, 26.66), (52.68, 15.24), (67.00, 10.01), (0.604, 0.031)),
        "influence": _row((27.24, 17.77), (47.27, 7.87), (67.09, 6.55), (0.608, 0.024)),
    },
    "energy-mlp": {
        "loss": _row((0.00, 0.00), (2.01, 8.06), (20.74, 4.87), (0.528, 0.040)),
        "gradient_norm": _row((0.00, 0.00), (6.25, 12.92), (26.83, 9.21), (0.507, 0.036)),
        "newton": _row((0.00, 0.00), (10.90, 19.74), (28.25, 7.50), (0.541, 0.032)),
        "influence": _row((6.25, 25.00), (14.72, 23.99), (30.32, 7.89), (0.540, 0.032)),
    },
}
