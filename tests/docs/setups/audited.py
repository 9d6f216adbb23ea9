"""Models of a table with a penalty that is small and one that is not, a saved audit, a saved layer, a policy."""

from pathlib import Path

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import noshadow

x, y = load_breast_cancer(return_X_y=True)
x, y = x[:300], y[:300]
names = [f"patient-{row}" for row in range(len(x))]
texts = {name: f"a patient of class {label}" for name, label in zip(names, y, strict=True)}


def fitted(c):
    return make_pipeline(StandardScaler(), LogisticRegression(C=c, tol=1e-9, max_iter=5000)).fit(x, y)


weak, strong = fitted(100.0), fitted(0.01)
noshadow.audit(weak, (x, y), ids=names).save("audit.parquet")
noshadow.last_layer(weak, (x, y)).save("layer.safetensors", ids=names)
Path("policy.toml").write_text("fail_above = 0.9\nmax_records = 0\n")
