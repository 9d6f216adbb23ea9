"""Where the spreads that predicted rates rest on come from, and how far each is to be trusted: one line for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["SPREAD_SOURCES", "Level", "SpreadSource"]

Level = Literal["firm", "fair", "weak"]


@dataclass(frozen=True)
class SpreadSource:
    """What audits, reports and policies say of rates whose spreads are from here.

    level       how firm such rates are
    said        one sentence for a report; {others} stands for the held-out records
    of_seed     the spreads are those of the seed alone: what other data does comes on top
    hint        what would make the rates better, and how to get it; empty where nothing would
    of_head     it is the law of a last layer on fixed features: the hint is for networks, whose features are not
    rough       what a policy adds to its verdict; empty where the rates are scaled by measured or stated spreads
    """

    level: Level
    said: str
    of_seed: bool = True
    hint: str = ""
    of_head: bool = False
    rough: str = ""


SPREAD_SOURCES: dict[str, SpreadSource] = {
    "rerun": SpreadSource("firm", "Calibrated by a second training run and {others}."),
    "stated": SpreadSource("fair", "Scaled by a spread between runs that was stated, not measured here."),
    "gap": SpreadSource(
        "weak",
        "Not calibrated: derived from the gap to {others}, without a second run.",
        of_seed=False,
        hint="the predicted rates are not calibrated: pass rerun=, a second model trained with another seed, for how "
        "far an attack's statistic moves from run to run",
        rough=", by rates that no rerun calibrated",
    ),
    "converged": SpreadSource(
        "fair",
        "By the law of a converged last layer; too low if the features before it were trained on these records.",
        of_seed=False,
        hint="the predicted rates are those of a last layer on features that were not trained on these records; if "
        "they were, pass held_out= and rerun=",
        of_head=True,
    ),
}
"""By name, ``Calibration.source``: two runs; a spread that the caller states; the gap of the losses; a head at its
optimum, record by record."""
