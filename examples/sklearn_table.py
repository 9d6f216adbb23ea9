"""A scikit-learn pipeline on a table: every patient's risk, in half a second.

Standardised measurements of 569 tumours and a logistic regression, as one Pipeline on a DataFrame. The model has
converged, and nobody trained its features on these patients: success rates follow from its own law, and neither a rerun
nor held-out records are needed. Run it with

    python examples/sklearn_table.py

It needs no download.
"""

from __future__ import annotations

import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import noshadow


def fit(penalty: float = 1.0) -> tuple[Pipeline, pd.DataFrame, pd.Series]:
    """The pipeline and its training table; the index names the patients."""
    x, y = load_breast_cancer(return_X_y=True, as_frame=True)
    x.index = pd.Index([f"patient-{row:03}" for row in range(len(x))])
    y = y.set_axis(x.index).map({0: "malignant", 1: "benign"})
    return make_pipeline(StandardScaler(), LogisticRegression(C=1.0 / penalty, tol=1e-9, max_iter=5000)).fit(x, y), x, y


def main() -> None:
    model, x, y = fit()
    audit = noshadow.audit(model, (x, y))
    print(audit.top(8)[["id", "target", "leverage", "exposure", "attack_accuracy"]].to_string(index=False))
    print("\nThe same with more regularisation:")
    for penalty in (1.0, 10.0, 100.0):
        table = noshadow.audit(*_and_data(fit(penalty))).table
        rates = table["attack_accuracy"]
        print(f"  penalty {penalty:5g}: highest rate {rates.max():.2f}, above 0.6: {(rates > 0.6).sum()} patients")


def _and_data(fitted: tuple[Pipeline, pd.DataFrame, pd.Series]) -> tuple[Pipeline, tuple[pd.DataFrame, pd.Series]]:
    model, x, y = fitted
    return model, (x, y)


if __name__ == "__main__":
    main()
