"""Trace: what a training run remembers of each record.

trace        the noun: epochs, mean outputs, losses; bound to a layer in one place
means        running means in float32 that stay accurate over thousands of epochs
losses       the mean and the quartiles of a record's losses, from all of them or from a few epochs
"""

from noshadow.trace.trace import Trace

__all__ = ["Trace"]
