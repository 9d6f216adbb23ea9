"""Our own small charts, as SVG inside of the page: no script, no plotting library, text that can be read and searched.

Colours and patterns are those of classes in the style sheet, so that one drawing does for light, dark and paper, and
the page needs no style attribute. All text is escaped. A chart's size does not depend on the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup

from noshadow.report.bins import HEIGHT
from noshadow.report.shown import Cloud, Range, Strip

__all__ = ["bands_bar", "loss_leverage_map", "patterns", "row_bar", "strip_chart", "swatch"]

_WIDTH = 640.0
_LEFT, _BOTTOM, _TOP = 58.0, 46.0, 12.0  # margins of a chart
_LEVELS = 5  # shades
_At = Callable[[float, float], tuple[float, float]]  # from units of the plot's width to points of the drawing


def _svg(width: float, height: float, title: str, body: Sequence[Markup], kind: str = "chart") -> Markup:
    """A drawing that a screen reader names by its title."""
    content = Markup("").join(body)
    return Markup('<svg class="{}" viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>').format(
        kind, width, height, title, content
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>').format(x, y, kind, anchor, text)


def patterns() -> Markup:
    """What tells the bands apart without colour: plain, dots, strokes, crosses. Once in a page."""
    lines = {
        1: '<circle cx="4" cy="4" r="1.5"/>',
        2: '<path d="M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4"/>',
        3: '<path d="M0,0 l8,8 M8,0 l-8,8"/>',
        4: '<path d="M0,4 h4"/>',
    }
    made = [
        f'<pattern id="band{kind}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" class="band{kind}"/><g class="ink">{shape}</g></pattern>'
        for kind, shape in {0: "", **lines}.items()
    ]
    return Markup(
        '<svg class="defs" width="0" height="0" aria-hidden="true" focusable="false"><defs>'
        + "".join(made)
        + "</defs></svg>"
    )


def swatch(kind: int) -> Markup:
    """The band's colour and pattern, beside its name."""
    return Markup(
        '<svg class="swatch" viewBox="0 0 18 14" aria-hidden="true"><rect width="18" height="14" rx="2" '
        'fill="url(#band{})"/></svg>'
    ).format(kind)


def row_bar(share: float, kind: int) -> Markup:
    """A bar of one row of a table; where there is anything it can be seen."""
    width = 0.0 if share <= 0 else max(200.0 * min(share, 1.0), 1.5)
    return Markup(
        '<svg class="rowbar" viewBox="0 0 200 12" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="200" height="12"/><rect width="{:.2f}" height="12" fill="url(#band{})"/></svg>'
    ).format(width, kind)


def bands_bar(ranges: Sequence[Range]) -> Markup:
    """All records as one bar, lowest band first; every part at least as wide as an eye needs."""
    counted = [part for part in ranges if part.count]
    least = 6.0
    wide = [max(least, _WIDTH * part.share) for part in counted]
    wide = [value * _WIDTH / sum(wide) for value in wide] if wide else []
    body: list[Markup] = []
    x = 0.0
    for part, width in zip(counted, wide, strict=True):
        body.append(
            Markup('<rect x="{:.2f}" y="0" width="{:.2f}" height="30" fill="url(#band{})"/>').format(
                x, max(width - 1.5, 1.0), part.kinds[-1]
            )
        )
        x += width
    said = ", ".join(f"{part.name} {part.count:,}" for part in ranges)
    return _svg(_WIDTH, 30, f"All records by predicted attack success: {said}", body, "bandsbar")


def _ticks(low: float, high: float) -> list[int]:
    """Whole powers of ten between the ends, eight at most."""
    first, last = math.ceil(low), math.floor(high)
    step = max(1, -(-(last - first + 1) // 8))
    return list(range(first, last + 1, step))


def _power(exponent: int) -> str:
    if -3 <= exponent <= 3:
        return f"{10.0**exponent:g}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def loss_leverage_map(cloud: Cloud, words: str) -> Markup:
    """Every record by how unusual and how hard to fit it is; the darker, the more records; dots: the most exposed."""
    wide = _WIDTH - _LEFT - 12.0
    high = wide * HEIGHT
    floor = _TOP + high

    def at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + wide * x, floor - wide * y

    body: list[Markup] = [
        Markup('<rect x="{:.1f}" y="{}" width="{:.1f}" height="{:.1f}" class="plot"/>').format(_LEFT, _TOP, wide, high)
    ]
    body += _hexagons(cloud, at, wide / cloud.columns / math.sqrt(3.0))
    for tick in _ticks(*cloud.x):
        x, _ = at((tick - cloud.x[0]) / (cloud.x[1] - cloud.x[0]), 0.0)
        body += [
            Markup('<path class="tick" d="M{:.1f},{:.1f}v5"/>').format(x, floor),
            _text(x, floor + 18, _power(tick), "label", "middle"),
        ]
    for tick in _ticks(*cloud.y):
        _, y = at(0.0, HEIGHT * (tick - cloud.y[0]) / (cloud.y[1] - cloud.y[0]))
        body += [
            Markup('<path class="tick" d="M{:.1f},{:.1f}h-5"/>').format(_LEFT, y),
            _text(_LEFT - 8, y + 4, _power(tick), "label", "end"),
        ]
    body += _lines(cloud, at)
    for number, (x, y) in enumerate(cloud.marked.tolist()):
        px, py = at(x, y)
        body.append(
            Markup('<circle class="top{}" cx="{:.1f}" cy="{:.1f}" r="{}"/>').format(
                " first" if not number else "", px, py, 3.2
            )
        )
    body.append(_text(_LEFT + wide / 2, floor + 38, "leverage: how unusual its features are →", "axis", "middle"))
    turned = Markup('<g transform="translate(14 {:.1f}) rotate(-90)">{}</g>')
    body.append(turned.format(_TOP + high / 2, _text(0, 0, f"{words} →", "axis", "middle")))
    return _svg(_WIDTH, floor + _BOTTOM, f"Map of all records: leverage against {words}", body)


def _hexagons(cloud: Cloud, at: _At, radius: float) -> list[Markup]:
    """One path per shade."""
    if not len(cloud.hexagons):
        return []
    counts = cloud.hexagons[:, 2]
    top = max(float(np.log(counts.max())), 1e-9)
    shades = np.minimum((np.log(counts) / top * _LEVELS).astype(int), _LEVELS - 1)
    half, quarter = radius * math.sqrt(3.0) / 2, radius / 2
    shape = (
        f"l{half:.1f},{quarter:.1f}v{radius:.1f}l{-half:.1f},{quarter:.1f}l{-half:.1f},{-quarter:.1f}v{-radius:.1f}z"
    )
    found = []
    for shade in range(_LEVELS):
        starts = (at(x, y) for x, y, _ in cloud.hexagons[shades == shade].tolist())
        path = "".join(f"M{x:.1f},{y - radius:.1f}{shape}" for x, y in starts)
        if path:
            found.append(Markup('<path class="shade{}" d="{}"/>').format(shade, path))
    return found


def _lines(cloud: Cloud, at: _At) -> list[Markup]:
    """Lines of equal risk, cut to the plot, each with its name where it leaves."""
    found: list[Markup] = []
    (x0, x1), (y0, y1) = cloud.x, cloud.y
    for line in cloud.lines:
        ends = []
        for x in np.linspace(x0, x1, 200):
            y = line.intercept + line.slope * x
            if y0 <= y <= y1:
                ends.append(((x - x0) / (x1 - x0), HEIGHT * (y - y0) / (y1 - y0)))
        if len(ends) < 2:
            continue
        (ax, ay), (bx, by) = at(*ends[0]), at(*ends[-1])
        found.append(Markup('<path class="equal" d="M{:.1f},{:.1f}L{:.1f},{:.1f}"/>').format(ax, ay, bx, by))
        floor = at(0.0, 0.0)[1]  # below the line, which falls, unless it leaves through the floor
        place = (bx - 4, by + 15) if by + 18 < floor else (bx + 2, by - 14)
        found.append(_text(min(place[0], _WIDTH - 16), place[1], line.label, "equalname", "end"))
    return found


def strip_chart(strips: Sequence[Strip], ends: tuple[float, float], rated: bool) -> Markup:
    """A strip per class: where its records lie, the darker the more of them; a stroke at its median."""
    left, right, step = 170.0, 60.0, 22.0
    wide = _WIDTH - left - right
    body: list[Markup] = []
    for number, strip in enumerate(strips):
        y = 4.0 + number * step
        name = strip.name if len(strip.name) <= 24 else strip.name[:23] + "…"
        body.append(_text(left - 10, y + 12, name, "label", "end"))
        body.append(
            Markup('<rect class="plot" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="16"/>').format(left, y, wide)
        )
        most = math.log1p(float(strip.counts.max()))
        cell = wide / len(strip.counts)
        for place, count in enumerate(strip.counts.tolist()):
            if count:
                shade = min(int(math.log1p(count) / most * _LEVELS), _LEVELS - 1)
                part = Markup('<rect class="shade{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="16"/>')
                body.append(part.format(shade, left + place * cell, y, cell + 0.3))
        middle = left + wide * min(max((strip.median - ends[0]) / (ends[1] - ends[0]), 0.0), 1.0)
        body.append(Markup('<path class="median" d="M{:.1f},{:.1f}v20"/>').format(middle, y - 2))
        body.append(_text(_WIDTH - right + 8, y + 12, f"{strip.records:,}", "label"))
    floor = 4.0 + len(strips) * step
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = ends[0] + share * (ends[1] - ends[0])
        label = (
            f"{value:.0%}".replace("%", " %")
            if rated and share in (0.0, 0.5, 1.0)
            else ""
            if rated
            else f"{10**value:.2g}"
        )
        body.append(_text(left + wide * share, floor + 14, label, "label", "middle"))
    what = "predicted attack success" if rated else "score, logarithmic"
    body.append(_text(left + wide / 2, floor + 32, what, "axis", "middle"))
    return _svg(_WIDTH, floor + 38, f"Every class: distribution of its records by {what}", body)
