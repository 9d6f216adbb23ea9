"""docs/theory.md, written from the results of ``benchmarks/theory.py``: no number on the page is typed by hand."""

from __future__ import annotations

from typing import Any

TEMPLATE = """# The theory as a calculator

<!-- written by benchmarks/theory.py; do not edit -->

`noshadow.theory` evaluates Section 3 of the paper: for least squares with Gaussian features, two numbers of a
training record fix what an attacker who sees its loss can do. Its **population leverage** h̄ = xᵀΣ⁻¹x says how
unusual its features are; its **structural error** ε = y − xᵀθ says how far its response is from the truth. The
model adds n records, p parameters and the noise σ.

```python
from noshadow import theory

theory.expected_gap(leverage=10, error=2, n=100, p=10)          # E[loss left out − loss as a member]
theory.tradeoff([0.001, 0.01, 0.1], 10, 2, 100, 10)              # false-negative rates of the paper's attack
theory.tpr_at_fpr(0.001, 10, 2, 100, 10, test="optimal")         # true-positive rate of the best attack
s = theory.from_sample(layer)                                    # h̄, ε, σ of every record of a fitted layer
theory.success_rate(s.leverage, s.error, s.n, s.p, s.sigma)      # one number a record
```

On the command line, `noshadow theory --leverage 10 --error 2 --n 100 --p 10` prints the figures and draws the
curve, and `noshadow theory figure --output figure1.png` makes the paper's Figure 1:

![Figure 1](theory_figure1.png)

## The laws

With V ~ χ²ₙ₋ₚ and Z ~ N(0, 1) independent of it (Lemma 3.1, Proposition 3.2):

    h_ii = h̄/(V + h̄)        e_out = ε + σ √(h̄/V) Z        e_in = (1 − h_ii) e_out        ℓ = e²

| function | what it gives |
|---|---|
| `sample_losses` | joint draws of (ℓ_in, ℓ_out, h_ii), for one or for q responses |
| `leverage_law` | law of h_ii: `cdf`, `quantile`, `mean` |
| `loss_cdf`, `loss_quantile` | law of the loss of a member (`side="in"`) or of a record left out (`side="out"`) |
| `expected_gap` | E[ℓ_out − ℓ_in] by quadrature over χ², ten digits and more, for one or for q responses |
| `gap_expansion` | the same to second order in 1/(n−p) |
| `tradeoff`, `tpr_at_fpr` | false-negative and true-positive rate at a false-positive rate |
| `auc`, `success_rate` | area under the curve; best share of right guesses when half the models hold the record |
| `epsilon_lower_bound` | the ε that the curve disproves for a given δ |
| `population_leverage`, `from_sample` | h̄ from a covariance; h̄, ε, σ of each record from a fitted layer |
| `influence_ratio`, `newton_ratio` | what share of the true change IF and NS see: 2(1−h)²/(2−h) and 2(1−h)/(2−h) |

Everything broadcasts; n and p are whole numbers with n > p. `exact=False`, the default, puts V = n−p: both losses
are then scaled noncentral χ² and all is closed form. `exact=True` averages over V: e_out becomes ε + τ T with
Student's T, and the member's law one integral. With `exact=True` the optimal test, `auc`, `success_rate` and
`epsilon_lower_bound` are computed on a fine partition of the losses: bounds from below, with three to four digits.
Curves are for one response; the gap and the draws take q of them.

## The gap

    E[Δ] = E_V[ (‖ε‖² + tr(Σ_y) h̄/V) · h̄(2V + h̄)/(V + h̄)² ]
         = 2‖ε‖²h̄/k + [4‖ε‖²h̄ + h̄²(2 tr Σ_y − 3‖ε‖²)]/k² + O(k⁻³),     k = n − p

The proof in the paper prints √h̄ for h̄ in the inner term; real refits reject that version and agree with the one
above (`tests/test_theory_gap.py`). The expansion needs n − p > 4 and h̄ well below n − p. Its measured error falls
with slope **{slope:.3f}** on logarithmic axes (h̄ = 2, ε = 1.5, σ = 0.7):

{expansion}

## The attacks

In units of τ = σ√(h̄/(n−p)) a record left out has the residual m + Z with m = |ε|/τ, and a member that residual
divided by 1 + a, a = h̄/(n−p). The attacker sees r = |residual|, and the log likelihood ratio is

    L(r) = log(1+a) − a(2+a) r²/2 + log cosh((1+a) m r) − log cosh(m r)

It falls in r if m ≤ 1, and the paper's test, a threshold on the loss, is optimal. If m > 1 it rises before it falls,
and the best test accepts an interval of losses: very small losses are then *less* typical of a member than slightly
larger ones. At ε = 1, τ = 0.5 and a false-positive rate of 0.001 the threshold finds
{threshold:.5f} of the members and the optimal test {optimal:.5f}. The success rate is the same for both:
at a loss of 0 the ratio is 1 + a > 1, so the best guess is always a threshold.

    success rate = ½(1 + P(|m+Z| < (1+a) r*) − P(|m+Z| < r*)),  L(r*) = 0      ≈ Φ(|ε|√(h̄/(n−p)) / 2σ) for small a

## On real data

California Housing, {pool:,} records, least squares on {n:,} of them (p = {p}, the bias included). From **one** such
model `from_sample` and `success_rate` predict each member's success rate in {prediction_seconds:.2f} s. The truth is
LiRA (online, a normal law for each record's residual inside and outside, leave-one-model-out) from {models:,} refits
on random halves of the pool, {refit_seconds:.0f} s in closed form. Mean ± standard deviation over {targets} models:

{spearman}

Two things to read from it. A record's success rate here is so close to ½ that {models:,} refits measure it with more
noise than signal: a second, independent LiRA of the same size agrees with the first no better than the row "LiRA
again" says, which is the ceiling of any comparison by rank. And one model with the theory ranks the records better
than LiRA with 200 models does.

The level is another matter. Records by predicted success rate, means over all targets:

{calibration}

d′ is the distance of the mean residuals inside and outside in units of their spread, as a root mean square over the
records and, for LiRA, with the part that the finite number of refits adds subtracted. Halves of a fixed pool vary less
than fresh data (a share 1 − n/N of the variance is left), which "predicted" includes through σ and "fresh" does not.
LiRA stays below what its own d′ allows, for it has to learn the means from the refits.

On California Housing the predicted d′ is too high: over the refits the residuals spread {spread:.1f} times (median) as
wide as Gaussian features and noise would have it. A handful of blocks with absurd occupancies and room counts move the
whole fit whenever they are drawn, and that noise hides the others. The laws assume Gaussian features; the same
comparison on a Gaussian control with California's covariance and noise ({control_spread:.2f} times the spread) shows
them calibrated:

{control}

Spearman with LiRA {models:,} on the control: prediction {control_prediction}, LiRA 200 {control_small},
LiRA again {control_again}.

## Speed

{points:,} points × {levels} false-positive rates: **{threshold_seconds:.1f} s** for the threshold test and
**{optimal_seconds:.1f} s** for the optimal one, on {cores} cores. {points:,} exact gaps take {gap_seconds:.1f} s and
{points:,} success rates {success_seconds:.1f} s.
"""


def page(results: dict[str, Any]) -> str:
    """The page's Markdown."""
    speed, series, tests = results["speed"], results["expansion"], results["tests"]
    california, control = results["california"], results["control"]
    ranks = control["spearman"]
    return TEMPLATE.format(
        slope=series["slope"],
        expansion=_table(
            ["n − p", "exact", "error of the expansion"],
            [
                [str(k), f"{gap:.6g}", f"{error:.2e}"]
                for k, gap, error in zip(series["k"], series["exact"], series["error"], strict=True)
            ],
        ),
        threshold=tests["threshold"],
        optimal=tests["optimal"],
        spearman=_ranks(california),
        calibration=_calibration(california),
        spread=california["spread_ratio"],
        control=_calibration(control),
        control_spread=control["spread_ratio"],
        control_prediction=_figure(ranks["prediction"]),
        control_small=_figure(ranks["LiRA 200"]),
        control_again=_figure(ranks["LiRA again"]),
        points=speed["points"],
        levels=speed["levels"],
        cores=speed["cores"],
        threshold_seconds=speed["seconds"]["threshold"],
        optimal_seconds=speed["seconds"]["optimal"],
        gap_seconds=speed["seconds"]["expected_gap"],
        success_seconds=speed["seconds"]["success_rate"],
        **{
            name: california[name]
            for name in ("pool", "n", "p", "models", "targets", "refit_seconds", "prediction_seconds")
        },
    )


def _ranks(result: dict[str, Any]) -> str:
    models = f"{result['models']:,}"
    found = result["spearman"]
    rows = [
        ["the theory, one model", "prediction", "prediction against separation"],
        ["LiRA with 200 models", "LiRA 200", "LiRA 200 separation"],
        [f"LiRA again, {models} other models", "LiRA again", "LiRA again separation"],
    ]
    return _table(
        ["ranking by", f"Spearman with the success rate of LiRA {models}", f"with the separation d′ of LiRA {models}"],
        [[label, _figure(found[first]), _figure(found[second])] for label, first, second in rows],
    )


def _calibration(result: dict[str, Any]) -> str:
    return _table(
        ["quantile of the prediction", "predicted", "fresh", "LiRA", "predicted d′", "LiRA d′"],
        [
            [
                f"{row['from']:.3g} – {row['to']:.3g}",
                *(f"{row[name]:.4f}" for name in ("predicted", "predicted_fresh", "observed")),
                *(f"{row[name]:.3f}" for name in ("predicted_separation", "observed_separation")),
            ]
            for row in result["calibration"]
        ],
    )


def _figure(value: dict[str, float]) -> str:
    return f"{value['mean']:.3f} ± {value['std']:.3f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
