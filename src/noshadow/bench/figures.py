"""The paper's figures from results: recall curves, loss against influence, images; and its table of sentences.

Each figure is written as PNG and as SVG, whole or not at all; the same result gives the same files.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from noshadow.attacks.registry import ATTACKS
from noshadow.bench.measure import CURVE
from noshadow.bench.run import TOP, Outcome
from noshadow.errors import missing_extra
from noshadow.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "ATTACK_NAMES",
    "DRAWN",
    "draw",
    "exposed_images",
    "loss_against_influence",
    "recall_curves",
    "sentences_table",
    "shows_images",
    "title_of",
]

ATTACK_NAMES = {name: attack.label for name, attack in ATTACKS.items()}
DRAWN = ("loss", "gradient_norm", "influence", "newton", "leave_one_out")
"""The scores of the recall curves."""

# Okabe and Ito's colours, which stay apart for colour-blind readers. Scores that often agree get narrower lines the
# later they are drawn, so that one that covers another lets it show.
_STYLES = {
    "loss": ("#E69F00", 1.8),
    "gradient_norm": ("#56B4E9", 1.8),
    "influence": ("#0072B2", 3.4),
    "newton": ("#D55E00", 2.1),
    "leave_one_out": ("#009E73", 0.9),
    "network_influence": ("#CC79A7", 1.8),
}
_OTHER = ("#000000", 1.8)
_CEILING = "0.45"
_COLUMNS = 2
_FLOOR = 7e-4
"""Lower edge of the recall axis, where a recall of 0 is drawn."""
_EDGE = 0.002  # share of the records that may lie below a scatter's axes; they are drawn on its edge
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "noshadow",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """All figures of one setting, as ``folder/SETTING-KIND.png`` and ``.svg``: those that its records allow."""
    folder.mkdir(parents=True, exist_ok=True)
    name = outcome.result["setting"]
    scores = (*DRAWN, "network_influence")
    made = []
    for attack in outcome.result["attacks"]:
        made += recall_curves([outcome.result], attack, folder / f"{name}-{attack}", scores)
    made += loss_against_influence([outcome], folder / f"{name}-scatter")
    if shows_images(outcome):
        made += exposed_images(outcome, folder / f"{name}-images")
    return made


def title_of(result: Mapping[str, Any]) -> str:
    """Data and model of a result."""
    return f"{result['data']}, {result['model']}"


def recall_curves(
    results: Sequence[Mapping[str, Any]],
    attack: str,
    path: Path,
    scores: Sequence[str] = DRAWN,
    titles: Sequence[str] | None = None,
) -> list[Path]:
    """Recall of the attack's top k among a score's top k over the share k, a panel per result (Figures 2, 3, 5 and 6).

    Solid: mean over the targets, ± 1 standard deviation shaded. Dashed: the first target alone. Grey: the attack again
    (dash-dotted), a perfect score (solid, where it was measured). Dotted: random order. ``path`` has no suffix.
    """
    with _figure(len(results), (4.6, 3.1), _COLUMNS, alone=(5.6, 5.1)) as (figure, panels):
        handles: dict[str, Any] = {}
        for axes, result, title in zip(panels, results, titles or [title_of(r) for r in results], strict=True):
            measured = result["attacks"][attack]
            where, shares = _distinct(result["members"])
            for name in (name for name in scores if name in measured["scores"]):
                handles[name] = _score_curve(axes, shares, measured["scores"][name]["curve"], where, name)
            ceilings = ((f"{ATTACK_NAMES[attack]} again", "ceiling", "-."), ("a perfect score", "oracle", "-"))
            for label, key, style in ceilings:
                if measured.get(key) is not None:
                    curve = _clipped(measured[key]["curve"], where)
                    (handles[label],) = axes.plot(shares, curve, color=_CEILING, lw=1.6, ls=style, zorder=2)
            (handles["random order"],) = axes.plot([_FLOOR, 1.0], [_FLOOR, 1.0], color="0.2", lw=1.0, ls=":", zorder=1)
            axes.set(xscale="log", yscale="log", xlim=(CURVE[0], 1.0), ylim=(_FLOOR, 1.15), title=title)
            axes.grid(color="0.92", lw=0.6)
            _percent(axes)
        _label(panels, "share k of the records kept", f"recall of {ATTACK_NAMES[attack]}'s top k")
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=2 if len(panels) == 1 else 4,
            frameon=False,
            columnspacing=1.4,
        )
        return _write(figure, path, dpi=_dots(panels))


def loss_against_influence(outcomes: Sequence[Outcome], path: Path, titles: Sequence[str] | None = None) -> list[Path]:
    """Loss and influence of the first target's members, coloured by LiRA's success rate, a panel a setting (Figure 8).

    The exposed are drawn last, on top. What is too small for the axes is drawn on their edge.
    """
    rates = [outcome.truth.success_rate[outcome.rows] for outcome in outcomes]
    with _figure(len(outcomes), (4.6, 3.4), _COLUMNS, alone=(5.6, 4.2)) as (figure, panels):
        from matplotlib import colormaps  # not before _figure has said what is missing
        from matplotlib.colors import LinearSegmentedColormap

        # light to dark, without the end that vanishes on white paper
        shades = colormaps["magma_r"](np.linspace(0.12, 0.95, 256))
        colours = LinearSegmentedColormap.from_list("exposure", shades, N=20)
        names = titles or [title_of(outcome.result) for outcome in outcomes]
        for axes, outcome, rate, title in zip(panels, outcomes, rates, names, strict=True):
            order = np.argsort(rate, kind="stable")
            points = axes.scatter(
                _positive(outcome.scores["loss"])[order],
                _positive(outcome.scores["influence"])[order],
                c=rate[order],
                s=float(np.clip(40_000 / len(rate), 5.0, 15.0)),
                cmap=colours,
                vmin=0.5,
                vmax=1.0,
                linewidths=0,
                antialiased=False,  # few distinct pixels: small files
                rasterized=True,
            )
            axes.set(xscale="log", yscale="log", title=title)
            axes.grid(color="0.92", lw=0.6)
            axes.set_axisbelow(True)
            axes.minorticks_off()
        _label(panels, "loss", "influence")
        figure.colorbar(points, ax=panels, label="LiRA's success rate", extend="min", aspect=10 * len(panels) + 12)
        return _write(figure, path, dpi=_dots(panels))


def shows_images(outcome: Outcome) -> bool:
    """Whether the pool holds colour images, (N, H, W, 3) uint8."""
    shown = outcome.pool.shown
    return shown is not None and shown.ndim == 4 and shown.shape[3] == 3 and shown.dtype == np.uint8


def exposed_images(outcome: Outcome, path: Path) -> list[Path]:
    """The most and the least exposed images by influence and by newton, class and LiRA's success rate below (Figure 7).

    Of the first target's members.
    """
    shown = outcome.pool.shown
    assert shown is not None  # shows_images
    rows = [(f"{end} {name}", outcome.result["top"][f"{end} {name}"]) for end in _ENDS for name in _RANKINGS]
    with _figure(len(rows) * TOP, (0.98, 1.2), TOP) as (figure, panels):
        for axes in panels:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for number, (label, records) in enumerate(rows):
            line = panels[number * TOP : (number + 1) * TOP]
            line[0].set_ylabel(label.replace(" ", "\n"), rotation=0, ha="right", va="center", labelpad=8)
            for axes, record in zip(line, records, strict=False):  # a tiny pool has fewer
                axes.imshow(shown[record["row"]], interpolation="none")
                axes.set_xlabel(
                    f"class {record['target']:.0f}\n{100 * record['lira_success_rate']:.1f} %", fontsize=8.5, labelpad=3
                )
        figure.suptitle(f"{title_of(outcome.result)}: class and LiRA's success rate", fontsize=11.0)
        return _write(figure, path)


_ENDS = ("highest", "lowest")
_RANKINGS = ("influence", "newton")


def sentences_table(result: Mapping[str, Any], longest: int = 90) -> str:
    """The sentences most exposed by newton and by influence, with LiRA's success rate, in Markdown (Table 6).

    Empty if the records are no sentences.
    """
    left, right = (result["top"][f"highest {name}"] for name in ("newton", "influence"))
    if not left or "text" not in left[0]:
        return ""
    lines = [
        "| rank | by `newton` | LiRA | by `influence` | LiRA |",
        "|--:|---|--:|---|--:|",
    ]
    for rank, pair in enumerate(zip(left, right, strict=True), 1):
        cells = [f"{_escaped(record['text'], longest)} | {100 * record['lira_success_rate']:.1f} %" for record in pair]
        lines.append(f"| {rank} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _escaped(text: str, longest: int) -> str:
    """Text that Markdown, in a table, shows as it is: shortened, on one line."""
    line = " ".join(text.split())
    if len(line) > longest:
        line = line[: longest - 1].rstrip() + "…"
    line = html.escape(line, quote=False).replace("$", "&#36;")  # a pair of dollars would be a formula
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", line)


def _score_curve(
    axes: Axes, shares: NDArray[np.float64], curve: Mapping[str, Any], where: NDArray[np.intp], name: str
) -> Any:
    colour, width = _STYLES.get(name, _OTHER)
    mean = _clipped(curve["mean"], where)
    (line,) = axes.plot(shares, mean, color=colour, lw=width, zorder=4)
    if None not in curve["std"]:  # one target has no deviation, and is its own mean
        low, high = (_clipped(np.add(curve["mean"], sign * np.array(curve["std"])), where) for sign in (-1, 1))
        axes.fill_between(shares, low, high, color=colour, alpha=0.09, lw=0, zorder=2)
        axes.plot(shares, _clipped(curve["first"], where), color=colour, lw=0.9, ls="--", alpha=0.8, zorder=3)
    return line


def _distinct(members: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Where the curve keeps another number of records than before, and these as shares: few of few members."""
    kept = np.maximum(1, np.floor(np.array(CURVE) * members * (1.0 + 1e-12)))
    numbers, where = np.unique(kept, return_index=True)
    return where, numbers / members


def _clipped(values: Any, where: NDArray[np.intp]) -> NDArray[np.float64]:
    """Recalls for a log axis: 0 is drawn on its lower edge."""
    clipped: NDArray[np.float64] = np.clip(np.asarray(values, dtype=np.float64)[where], _FLOOR, 1.0)
    return clipped


def _positive(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values for a log axis: the lowest few, and what is not positive, at the value that bounds them."""
    positive = values[values > 0]
    floor = np.quantile(positive, _EDGE, method="lower") if len(positive) else 1.0
    clipped: NDArray[np.float64] = np.maximum(values, floor)
    return clipped


def _label(panels: Sequence[Axes], x: str, y: str) -> None:
    """Name the axes where no other panel is below or to the left."""
    for number, axes in enumerate(panels):
        if number + _COLUMNS >= len(panels):
            axes.set_xlabel(x)
        if number % _COLUMNS == 0:
            axes.set_ylabel(y)


def _dots(panels: Sequence[Axes]) -> int:
    """Dots an inch: fewer for many panels, which keeps their files small."""
    return 150 if len(panels) <= _COLUMNS else 100


def _percent(axes: Axes) -> None:
    ticks, labels = [0.001, 0.01, 0.1, 1.0], ["0.1 %", "1 %", "10 %", "100 %"]
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)


@contextmanager
def _figure(
    panels: int,
    size: tuple[float, float],
    columns: int,
    *,
    alone: tuple[float, float] | None = None,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with so many panels of a size in inches in rows of so many columns, and its panels."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("matplotlib", "bench") from None
    columns = min(columns, panels)
    rows = math.ceil(panels / columns)
    width, height = alone if alone is not None and panels == 1 else (size[0] * columns, size[1] * rows + 0.5)
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes in grid[panels:]:
            axes.remove()
        yield figure, list(grid[:panels])


def _write(figure: Figure, path: Path, dpi: int = 150) -> list[Path]:
    written = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        target = path.parent / f"{path.name}.{kind}"
        with atomic_path(target, private=False) as temporary:
            figure.savefig(temporary, format=kind, dpi=dpi, metadata=metadata)
        written.append(target)
    return written
