"""Features, logits and labels of a softmax classifier, others that it was not trained on, and a way to train more."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import noshadow

pixels, digits = load_digits(return_X_y=True)
features, labels = pixels[:300] / 16.0, digits[:300]
new_features, new_labels = pixels[300:400] / 16.0, digits[300:400]


def train(members, seed):
    fitted = LogisticRegression(C=1.0, max_iter=200).fit(features[members], labels[members])
    return fitted.decision_function(features)


fitted = LogisticRegression(C=1.0, max_iter=500).fit(features, labels)
logits, new_logits = fitted.decision_function(features), fitted.decision_function(new_features)
layer = noshadow.LastLayer(features, logits, labels, head="softmax", ridge=1.0, penalize_bias=False)

rng = np.random.default_rng(0)
canary_labels = rng.integers(0, 10, 20)
inserted = rng.random((16, 20)) < 0.5
outputs_of_the_models = rng.normal(size=(16, 20, 10)) + 4.0 * inserted[..., None] * np.eye(10)[canary_labels]
