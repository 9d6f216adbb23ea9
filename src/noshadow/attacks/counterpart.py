"""The model that is left out beside the target, so that what remains does not give the target away.

A record's success rate is the mean of its true positive and its true negative rate: it is taken given that n of the K
models have the record. If the target alone is left out, a member sees n − 1 models with the record and a non-member
sees n. An attack that leans, however little, towards the side of which it has seen more (a classifier that recognises
the record, a mean with less noise, a threshold drawn between the two sides) then leans away from the truth, and where
there is nothing to find it is right less than half of the time: with 16 models LiRA .495, class thresholds .49,
Shokri's classifiers down to .44. No way of drawing the splits helps, because n is given whichever way it came about.

So one more model is left out, from the other side: n − 1 models with the record and K − n − 1 without remain for every
target. Exchange the two that are left out and nothing that the attack has seen changes: if the outputs of the models
say nothing about the record's membership, target and counterpart are as likely to be called a member, and the success
rate is ½ in expectation, for every attack, every number of models and every n.

The r-th model with the record and the r-th without are each other's counterparts, by their order in the arrays (the
surplus of the larger side begins again at the first). Where splits come in complementary pairs or in blocks with half
of the models a record, pairs and blocks being adjacent rows, a counterpart is thus of the same pair or block, as it has
to be: models of a block depend on each other.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["counterparts"]


def counterparts(member: Tensor) -> Tensor:
    """For each target and record the model on the record's other side that is left out with it, (K, c) indices.

    member (K, c) booleans; every record is in some model and out of some.
    """
    n_models = member.shape[0]
    rank_in = member.cumsum(0) - 1
    rank_out = (~member).cumsum(0) - 1
    n_in = rank_in[-1] + 1
    n_out = n_models - n_in
    models = torch.arange(n_models, device=member.device).unsqueeze(1).expand(member.shape)
    # the models of a record in order, those with it first
    order = torch.empty_like(models).scatter_(0, torch.where(member, rank_in, n_in + rank_out), models)
    return order.gather(0, torch.where(member, n_in + rank_in % n_out, rank_out % n_in))
