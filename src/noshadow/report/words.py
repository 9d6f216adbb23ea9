"""The sentences of a report that are the same for every audit: attacker, limits, options, glossary.

The terms are those of NIST AI 100-2 (Adversarial Machine Learning: A Taxonomy and Terminology); the sentences are ours.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ATTACKER", "COLUMNS", "GLOSSARY", "NOT_SHOWN", "OPTIONS", "SUPPRESSED", "groups_left_out"]

_NAMED = 12  # groups without a table

ATTACKER = (
    "has a record with its correct label, and asks one question: was this record in the training data?",
    "sees the model's full output for it (scores, not only the answer), as often as needed: query access",
    "knows the recipe and the kind of data, and can train models of its own to learn what outputs to expect",
    "does not know the other training records; before asking, yes and no are equally likely",
)

NOT_SHOWN = (
    "It is no proof of anonymity. A low rate is a prediction, not a bound; a stronger attacker may do better.",
    "It is no guarantee of differential privacy, and it measures no ε.",
    "It says nothing of data reconstruction (extraction), of attribute or property inference, of poisoned data.",
    "It looks at the last layer: what earlier layers give away shows only as far as it reaches that layer.",
    "It knows no duplicates: a record that is there twice looks safer than the person behind it is.",
)

OPTIONS = (
    ("Train with differential privacy (DP-SGD)", "the only one with a guarantee; costs accuracy, mostly of rare cases"),
    ("Regularise more, stop earlier", "lowers most rates, promises none; audit again"),
    ("Give coarser outputs (label only, rounding)", "makes attacks dearer, does not stop them"),
    ("Remove duplicates, correct labels", "hard-to-fit records are often errors; cheap, worth doing first"),
    ("Take out the most exposed records", "exposes others, which were safe beside them; audit again"),
    ("Restrict who may query the model", "changes who the attacker is, not what the model holds"),
)

SUPPRESSED = (
    "Counts from 1 to 9 are withheld, and with them as many others as it takes so that none can be worked out; values "
    "with fewer than 10 records share a row."
)

GLOSSARY = (
    ("Membership inference", "telling from a model whether a given record was used to train it; a privacy compromise"),
    ("Member", "a record of the training data"),
    ("Attack success rate", "how often the attacker's yes or no is right: 50 % is a coin, 100 % is certainty"),
    ("Query access", "the attacker may ask the model and see its outputs (black box); white box: sees its weights too"),
    ("Shadow model", "a model that an attacker trains on similar data to learn how members look; none was needed here"),
    ("Leverage", "how much of the model's answer for a record the record itself decides"),
    ("Exposure", "how much worse the model would do on the record had it not been trained on it"),
    ("Data reconstruction", "recovering the content of training records; another attack, not measured here"),
    ("Mitigation", "a measure that makes an attack harder; differential privacy is one with a proof"),
)


def groups_left_out(names: Sequence[str], public: bool) -> str:
    """That there are more groups than tables; in private also which, and how to see them."""
    count = f"{len(names):,} more group{'' if len(names) == 1 else 's'}"
    if public:  # a second summary, of the others, could be held against this one to work out what is withheld
        return f"The audit has {count} that this summary has no room for."
    shown = ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
    return (
        f"There is no room for {count} ({shown}): name them first in groups= to see them here, or count them in "
        "audit.table, which has a column for each."
    )


COLUMNS = {
    "attack_accuracy": "success",
    "attack_tpr": "found at 1 %",
    "attack_power": "power d′",
    "exposure": "exposure",
    "leverage": "leverage",
    "loss": "loss",
    "mean_trace": "mean loss",
    "leave_one_out": "leave one out",
}
"""What the scores are called in the tables of the engineer's part."""
