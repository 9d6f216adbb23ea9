"""``noshadow attack STORE``: a membership-inference attack on the models of a shadow study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noshadow.commands.output import explained_errors, print_json
from noshadow.commands.render import print_notes, show_attack
from noshadow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from noshadow.attacks import AttackResult
    from noshadow.shadow import StudyResult

__all__ = ["RATES", "attack", "per_record"]

_OPTIONS = {name: f"--{name}" for name in ("attack", "variant", "variance", "folds", "head", "output")}
_CONTENTS = dict.fromkeys(("store", "outputs", "membership", "targets", "signal"), "STORE")
RATES = (0.01, 0.001, 0.0001)


def _names() -> list[str]:
    from noshadow.attacks.registry import ATTACKS  # here: it imports torch, which help can do without

    return list(ATTACKS)


def attack(
    store: Annotated[Path, typer.Argument(metavar="STORE", exists=True, help="The directory of a shadow study.")],
    name: Annotated[str, typer.Option("--attack", "-a", help="lira, rmia or shokri.", autocompletion=_names)] = "lira",
    variant: Annotated[
        str | None,
        typer.Option(help="lira: online, offline or offline_two_sided; rmia: online or offline. Default: online."),
    ] = None,
    variance: Annotated[
        str | None, typer.Option(help="lira: auto (per_sample from 24 models on), per_sample or fixed. Default: auto.")
    ] = None,
    signal: Annotated[
        str | None, typer.Option(help="lira, squared error: loss, log_loss or signed_residual. Default: loss.")
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(help="shokri: deal the models into so many folds. Default: one per model, the slowest and best."),
    ] = None,
    targets: Annotated[
        Path | None,
        typer.Option(exists=True, help="An .npy with the true targets, if the study was not given them."),
    ] = None,
    head: Annotated[str | None, typer.Option(help="squared, logistic or softmax. Default: the study's.")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Attack the finished models of an unfinished study.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="All records, .parquet or .csv. Default: noshadow-ATTACK.parquet."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many of the most exposed records to print.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
) -> None:
    """Attack the models of a shadow study.

    STORE is the directory of a shadow.Study that has been run: each of its models is attacked with the others as
    references. The result has a row per record. Its success rate is how often the attack tells rightly whether the
    record was in the training half, the mean of the models with it and of those without; 0.5 is guessing.

    \b
    Examples:
      noshadow attack study/
      noshadow attack study/ --attack rmia -o rmia.parquet
      noshadow attack study/ --json > attack.json
    """
    given = {key: f"--{key}" for key, value in (("targets", targets), ("signal", signal)) if value}
    with explained_errors({**_OPTIONS, **given}, _CONTENTS, more=("targets", "signal")) as command:
        from noshadow import shadow
        from noshadow.attacks.registry import Options, run_attack
        from noshadow.files import check_output
        from noshadow.tables import TABLES, save_table

        options = Options(name, variant, variance, signal, folds)
        output = check_output(output or Path(f"noshadow-{name}.parquet"), TABLES)
        study = shadow.load(store, partial=partial)
        result = run_attack(study.outputs, study.membership, _targets(study, targets), _head(study, head), options)
        table = per_record(result)
        facts = {"attack": result.attack, "models": len(result.scores), "records": len(table), **_summary(result)}
        saved = save_table(table, {**facts, "notes": command.notes}, output, "output")
        if as_json:
            shown = {"notes": command.notes, "top": _top(table, top).to_dict("records"), "saved": str(saved)}
            print_json({**facts, **shown})
        else:
            show_attack(facts, _top(table, top), saved)
            print_notes(command.notes)


def per_record(result: AttackResult) -> pd.DataFrame:
    """A row per record in the order of the study, with its rank: 1 is the most exposed."""
    import numpy as np

    table = result.table
    table.insert(0, "record", np.arange(len(table)))
    order = np.lexsort((-result.tiebreak, -result.success_rate))
    rank = np.empty(len(table), dtype=np.int64)
    rank[order] = np.arange(1, len(table) + 1)
    table.insert(1, "rank", rank)
    return table


def _targets(study: StudyResult, file: Path | None) -> Any:
    if file is not None:
        from noshadow.npz import read_npy

        return read_npy(file, "targets")
    if study.targets is None:
        raise InputError("store: this study was not given its targets; pass --targets FILE.npy")
    return study.targets


def _head(study: StudyResult, asked: str | None) -> str:
    head = asked or study.head
    if head is None:
        raise InputError("store: this study was not given its head; pass --head squared, logistic or softmax")
    return head


def _summary(result: AttackResult) -> dict[str, Any]:
    return {
        "success_rate": float(result.success_rate.mean()),
        "balanced_accuracy": result.balanced_accuracy,
        "auc": result.auc,
        **{f"tpr_at_{100 * rate:g}_percent_fpr": result.tpr_at_fpr(rate) for rate in RATES},
        "epsilon_lower_bound": result.epsilon_lower_bound(),
    }


def _top(table: pd.DataFrame, count: int) -> pd.DataFrame:
    top: pd.DataFrame = table.sort_values("rank").head(count)
    return top
