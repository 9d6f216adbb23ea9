"""Trace: what a training run remembers of each record.

trace        the noun: how a run is recorded, from a model, from outputs, from checkpoints, from arrays
remembered   what can be asked of it: epochs, mean outputs, losses
binding      whether it is of the records of a layer
means        running means in float32 that stay accurate over thousands of epochs
memory       what is held, as one value: an epoch is either in it, whole, or not
asking       what is asked of an epoch before it is taken
epoch        an epoch that comes in batches, in any order
arrays       whole arrays of a run, as what a trace holds
checkpoints  the weights of several moments, put into the model in turn
storage      files
consistency  whether mean outputs can be what they are said to be
losses       the mean and the quartiles of a record's losses, from all of them or from a few epochs
huggingface  a callback of its trainer
lightning    likewise
"""

from noshadow.trace.trace import Trace

__all__ = ["Trace"]
