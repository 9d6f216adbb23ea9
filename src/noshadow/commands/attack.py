"""``noshadow attack STORE``: a membership-inference attack on the models of a shadow study."""

from __future__ import annotations

import re
import warnings
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from noshadow import shadow
from noshadow.attacks import AttackResult
from noshadow.attacks.named import Options, run_attack
from noshadow.commands.output import explained_errors, print_json
from noshadow.errors import InputError, NoshadowWarning
from noshadow.tables import save_table

RATES = (0.01, 0.001, 0.0001)


class AttackName(str, Enum):
    """The attacks to choose from."""

    lira = "lira"
    rmia = "rmia"
    shokri = "shokri"


def attack(
    store: Annotated[Path, typer.Argument(help="The directory of a shadow study.", exists=True, file_okay=False)],
    name: Annotated[AttackName, typer.Option("--attack", "-a", help="The attack.")] = AttackName.lira,
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
        typer.Option(help="shokri: deal the models into so many folds. Default: one a model, the slowest and best."),
    ] = None,
    targets: Annotated[
        Path | None, typer.Option(help="An .npy with the true targets, if the study was not given them.")
    ] = None,
    head: Annotated[str | None, typer.Option(help="squared, logistic or softmax. Default: the study's.")] = None,
    partial: Annotated[bool, typer.Option(help="Attack the finished models of an unfinished study.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="All records, .parquet or .csv. Default: noshadow-ATTACK.parquet."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many of the most exposed records to print.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
) -> None:
    """Attack every model of a study with the others as references; print the table, save a row per record.

    STORE is the directory of a shadow.Study that has been run. A record's success rate is how often the attack tells
    rightly whether the record was in the training half, the mean of the models with it and of those without; 0.5 is
    guessing.

    Example: noshadow attack study/ --attack rmia -o rmia.parquet
    """
    with explained_errors():
        study = shadow.load(store, partial=partial)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NoshadowWarning)
            try:
                options = Options(name.value, variant, variance, signal, folds)
                truth, kind = _targets(study, targets), _head(study, head)
                result = run_attack(study.outputs, study.membership, truth, kind, options)
            except InputError as error:
                raise InputError(_option_names(str(error))) from None
        told = [_option_names(str(one.message)) for one in caught if issubclass(one.category, NoshadowWarning)]
        notes = list(dict.fromkeys(told))
        table = per_record(result)
        facts = {"attack": result.attack, "models": len(result.scores), "records": len(table), **_summary(result)}
        saved = save_table(table, facts, output or Path(f"noshadow-{name.value}.parquet"), "output")
        if as_json:
            print_json({**facts, "notes": notes, "top": _top(table, top).to_dict("records"), "saved": str(saved)})
        else:
            _show(facts, notes, _top(table, top), saved)


def _option_names(message: str) -> str:
    """The message with options of this command in place of arguments: ``--signal``, ``--variance fixed``."""
    message = re.sub(r"^(attack|variant|variance|folds|targets|head)(?=: )", r"--\1", message)
    message = re.sub(r"^signal(?=: ('\w*' is not one of|an option of))", "--signal", message)  # not the array's faults
    return re.sub(r"\b(variant|variance|signal|folds)='?(\w+)'?", r"--\1 \2", message)


def per_record(result: AttackResult) -> pd.DataFrame:
    """A row per record in the order of the study, with its rank: 1 is the most exposed."""
    table = result.table
    table.insert(0, "record", np.arange(len(table)))
    order = np.lexsort((-result.tiebreak, -result.success_rate))
    rank = np.empty(len(table), dtype=np.int64)
    rank[order] = np.arange(1, len(table) + 1)
    table.insert(1, "rank", rank)
    return table


def _targets(study: shadow.StudyResult, file: Path | None) -> Any:
    if file is not None:
        try:
            return np.load(file, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise InputError(f"targets: {file} is not an .npy of plain numbers ({error})") from None
    if study.targets is None:
        raise InputError("targets: this study was not given them; pass --targets FILE.npy")
    return study.targets


def _head(study: shadow.StudyResult, asked: str | None) -> str:
    head = asked or study.head
    if head is None:
        raise InputError("head: this study was not given one; pass --head squared, logistic or softmax")
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


def _show(facts: dict[str, Any], notes: list[str], top: pd.DataFrame, saved: Path) -> None:
    console = Console()
    title = f"{facts['attack']}: {facts['models']} models, {facts['records']:,} records"
    console.print(title, style="bold", highlight=False)
    whole = Table(show_header=False)
    for name, value in list(facts.items())[3:]:
        whole.add_row(name.replace("_percent_", " % ").replace("_", " "), f"{value:.4f}")
    console.print(whole)
    rows = Table(title=f"The {len(top)} most exposed records", title_justify="left")
    for column in ("rank", "record", "success rate", "separation", "in models"):
        rows.add_column(column, justify="right")
    for row in top.itertuples():
        separation = f"{row.separation:.2f} ± {row.separation_error:.2f}"
        rows.add_row(str(row.rank), str(row.record), f"{row.success_rate:.3f}", separation, str(row.models_in))
    console.print(rows)
    for note in notes:
        console.print(f"Note: {note}", markup=False, highlight=False)
    console.print(f"All {facts['records']:,} records: {saved}", markup=False, highlight=False)
