"""Why a record is exposed, in words: it is unusual, it was hard to fit, or both.

A record is exposed through its leverage, how much of its own fit it decides, and its error, how badly it fits without
its own help. Both are in the table: ``leverage``, and ``mean_trace``, the mean loss over training, or, without a trace,
the final ``loss``.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["BOTH", "HARD", "HIGH", "UNUSUAL", "reasons"]

UNUSUAL, HARD, BOTH = "unusual", "hard to fit", "both"
HIGH = 0.9
"""A record is both where it is among the highest tenth in each."""


def reasons(table: pd.DataFrame) -> list[str]:
    """A reason for every record of an audit's table.

    Parameters
    ----------
    table : pandas.DataFrame
        With ``leverage``, and ``mean_trace`` or ``loss``.

    Returns
    -------
    list of str
        "both" where the record is among the highest tenth by leverage and by loss; else "unusual" or "hard to fit",
        whichever it stands out by more, by rank.

    Examples
    --------
    >>> import pandas as pd
    >>> from noshadow.reasons import reasons
    >>> reasons(pd.DataFrame({"leverage": [0.1, 0.9, 0.2], "loss": [3.0, 0.1, 0.2]}))
    ['hard to fit', 'unusual', 'unusual']
    """
    unusual = _rank(table["leverage"])
    hard = _rank(table["mean_trace" if "mean_trace" in table else "loss"])
    both = np.minimum(unusual, hard) > HIGH
    return np.where(both, BOTH, np.where(unusual >= hard, UNUSUAL, HARD)).tolist()


def _rank(column: pd.Series) -> NDArray[np.float64]:
    """Share of the records that are not above each, ties at their mean."""
    return np.asarray(column.rank(pct=True), dtype=np.float64)
