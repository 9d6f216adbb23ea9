"""PyTorch modules, Hugging Face models included: the last linear layer, found by watching batches go through.

loaders   the training data as batches: every record once, in the data set's order
batches   what of a batch is an input, what is the target
watching  eval mode, and a record of what the layers of a model saw and gave
layers    which layers are linear, and their parameters
matching  the layer whose output is the model's output, and each record's row in it
kinds     which loss the outputs were trained with
door      the forward pass that puts them together
outputs   the same forward pass for outputs and targets alone, beside training
"""

from noshadow.extract.torch.door import extract_torch
from noshadow.extract.torch.outputs import Evaluated, evaluate_torch
from noshadow.extract.torch.watching import evaluating, unwrapped

__all__ = ["Evaluated", "evaluate_torch", "evaluating", "extract_torch", "unwrapped"]
