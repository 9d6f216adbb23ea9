"""Membership-inference attacks on arrays: K models by N records in, scores and success rates per record out."""

from noshadow.attacks.epsilon import epsilon_lower_bound
from noshadow.attacks.lira import lira, lira_variance
from noshadow.attacks.metrics import RocCurve, auc, roc, tpr_at_fpr
from noshadow.attacks.prior import Posterior, with_prior
from noshadow.attacks.result import AttackResult
from noshadow.attacks.rmia import rmia
from noshadow.attacks.shokri import shokri
from noshadow.attacks.signal import signal
from noshadow.attacks.threshold import threshold

__all__ = [
    "AttackResult",
    "Posterior",
    "RocCurve",
    "auc",
    "epsilon_lower_bound",
    "lira",
    "lira_variance",
    "rmia",
    "roc",
    "shokri",
    "signal",
    "threshold",
    "tpr_at_fpr",
    "with_prior",
]
