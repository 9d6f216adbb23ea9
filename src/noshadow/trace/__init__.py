"""Trace: what a training run remembers of each record.

trace        the noun: epochs, mean outputs, losses; its recorders
binding      whether it is of the records of a layer
means        running means in float32 that stay accurate over thousands of epochs
memory       what is held, as one value: an epoch is either in it, whole, or not
epoch        an epoch that comes in batches, in any order
checkpoints  the weights of several moments, put into the model in turn
storage      files
losses       the mean and the quartiles of a record's losses, from all of them or from a few epochs
huggingface  a callback of its trainer
lightning    likewise
"""

from noshadow.trace.trace import Trace

__all__ = ["Trace"]
