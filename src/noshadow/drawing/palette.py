"""One look for each score in every figure: a colour, a dash and a marker, so that no reader depends on colour alone.

The colours are Okabe and Ito's, which stay apart for colour-blind readers; scores of one family share a hue and differ
in dash and marker, which is also what is left of them on grey paper.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BLACK", "BLUE", "CEILING", "GREEN", "ORANGE", "PURPLE", "SCORES", "SKY", "VERMILION", "Look", "look_of"]

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
CEILING = "0.45"
"""What bounds the scores: grey, and without a marker."""

_Dash = str | tuple[int, tuple[float, ...]]
_SHORT: _Dash = (0, (2.0, 1.2))
_LONG: _Dash = (0, (6.0, 1.6))


@dataclass(frozen=True)
class Look:
    """How a score is drawn: matplotlib's colour, dash and marker; width of line and size of marker in points."""

    colour: str
    dash: _Dash
    marker: str
    width: float = 1.5
    size: float = 6.0


SCORES = {
    "exposure": Look(BLACK, "-", "o", 3.2, 7.5),  # the one to rank by: the most visible
    "newton": Look(VERMILION, "-", "s"),
    "leave_one_out": Look(GREEN, _LONG, "^"),
    "influence": Look(BLUE, "-", "D"),
    "network_influence": Look(BLUE, _SHORT, "d"),
    "loss": Look(ORANGE, _SHORT, "v"),
    "gradient_norm": Look(SKY, _LONG, "X", size=7.0),
    "mean_trace": Look(PURPLE, "-", "P", size=8.0),
    "trace_iqr": Look(PURPLE, _SHORT, "*", size=10.0),
}
_OTHER = Look("0.25", _LONG, "h")


def look_of(score: str) -> Look:
    """The look of a score; those without one of their own share one."""
    return SCORES.get(score, _OTHER)
