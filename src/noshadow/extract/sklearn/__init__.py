"""scikit-learn estimators: the last linear layer, with the regularisation and the weights that it was fitted with."""

from noshadow.extract.sklearn.door import extract_sklearn

__all__ = ["extract_sklearn"]
