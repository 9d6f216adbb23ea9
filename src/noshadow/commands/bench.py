"""``noshadow bench SETTING...``: the paper's experiments, from data to tables and figures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from noshadow.commands.output import explained_errors, print_json, print_notes
from noshadow.errors import InputError

__all__ = ["EngineName", "ScaleName", "bench"]

_NAMED = ("shadows", "pool", "backbone", "seed", "engine", "workers", "address", "data", "cache", "store", "output")
_OPTIONS = {"setting": "SETTING", **{name: f"--{name}" for name in _NAMED}}


class ScaleName(str, Enum):
    """How much is run."""

    smoke = "smoke"
    cpu = "cpu"
    paper = "paper"


class EngineName(str, Enum):
    """Where models are trained."""

    processes = "processes"
    ray = "ray"
    serial = "serial"


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "noshadow"


def bench(
    settings: Annotated[list[str] | None, typer.Argument(metavar="SETTING", help="Settings by name, or all.")] = None,
    scale: Annotated[
        ScaleName,
        typer.Option(
            help="smoke: whether it works, a quarter of a minute to a minute per setting; cpu: about an hour in all on "
            "two cores; paper: 200 shadows, 16 targets, full pool."
        ),
    ] = ScaleName.cpu,
    shadows: Annotated[int | None, typer.Option(min=16, help="Number of shadow models.")] = None,
    targets: Annotated[int | None, typer.Option(min=1, help="Number of target models.")] = None,
    pool: Annotated[int | None, typer.Option(min=40, help="Number of records that splits are drawn from.")] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="For frozen features and fine-tuning: efficientnet-lite0, minilm, minilm-2, or a name or "
            "folder that transformers loads."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of the pool, the splits and the training.")] = 0,
    engine: Annotated[
        EngineName | None,
        typer.Option(
            help="Where models are trained. Default: processes; at scale smoke serial, as they take longer to start."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Models trained side by side. Default: one per core.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster, for --engine ray.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(envvar="NOSHADOW_DATA", help="Folder with the data; what is not there is downloaded."),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(envvar="NOSHADOW_CACHE", help="Folder for downloads and frozen features.")
    ] = None,
    store: Annotated[
        Path, typer.Option(help="Folder for the trained models' outputs; an interrupted run continues from it.")
    ] = Path("noshadow-bench"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for results and figures. Default: STORE/results.")
    ] = None,
    rescore: Annotated[
        bool, typer.Option(help="Train nothing: score the stored models again. Without SETTING: all that are stored.")
    ] = False,
    figures: Annotated[bool, typer.Option(help="Draw the figures, as PNG and SVG.")] = True,
    list_settings: Annotated[
        bool, typer.Option("--list", help="Show the settings and their scales, and stop.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Rerun the paper's experiments, from data to figures.

    Do the scores of one model find the records that LiRA finds with many? For each setting, shadow and target models
    are trained (or taken from the store), attacked with LiRA, RMIA and Shokri's attack, and scored; then the recall of
    every score is measured, beside what the attack finds of itself, what a perfect score would find, and the
    paper's number. A run that was interrupted continues where it stopped when the same command is given again.

    \b
    Example: noshadow bench --list
             noshadow bench energy-mlp --scale smoke
             noshadow bench california-mlp energy-mlp --data DIR
             noshadow bench --rescore -o results
    """
    with explained_errors(_OPTIONS) as command:
        from noshadow.bench.run import run_setting, save_result
        from noshadow.bench.setting import all_settings, find_settings
        from noshadow.bench.source import DataSource
        from noshadow.files import check_writable, private_folder

        if list_settings:
            _show_settings(all_settings(), as_json)
            return
        used_engine = engine or (EngineName.serial if scale is ScaleName.smoke else EngineName.processes)
        if address is not None and used_engine is not EngineName.ray:
            raise InputError("address: it is for engine='ray'")
        chosen = find_settings(settings or [])
        if not chosen:
            names = [name for name in all_settings() if rescore and any(store.glob(f"{name}-{scale.value}-*"))]
            if not names:
                if rescore:
                    raise InputError(f"store: {store} holds no models of scale {scale.value} to score again")
                raise InputError("setting: none was named; name some, or all. noshadow bench --list shows them")
            chosen = find_settings(names)
        if backbone is not None and all(setting.scales[scale.value].backbone is None for setting in chosen):
            raise InputError(f"backbone: {', '.join(setting.name for setting in chosen)} has no use for one")
        folder = output or store / "results"
        check_writable(private_folder(folder), "output")
        results = []
        for setting in chosen:
            known = len(command.notes)
            wanted: dict[str, Any] = {"shadows": shadows, "targets": targets, "pool": pool, "backbone": backbone}
            used = replace(setting.scales[scale.value], **{key: value for key, value in wanted.items() if value})
            outcome = run_setting(
                setting,
                used,
                DataSource(data, cache or _cache_folder(), used.backbone),
                store / f"{setting.name}-{scale.value}-{used.pool}-{seed}",
                scale_name=scale.value,
                seed=seed,
                rescore=rescore,
                engine={"engine": used_engine.value, "workers": workers, "address": address},
            )
            outcome.result["notes"] = command.notes[known:]
            saved = [save_result(outcome, folder)]
            if figures:
                from noshadow.bench.figures import draw

                saved += draw(outcome, folder)
            results.append(outcome.result)
            if not as_json:
                _show(outcome.result, saved)
                print_notes(outcome.result["notes"])
        if as_json:
            print_json(results)


def _show_settings(settings: Mapping[str, Any], as_json: bool) -> None:
    rows = [
        {"setting": name, "data": setting.data, "model": setting.model_name, "head": setting.head}
        | {key: f"{scale.shadows}+{scale.targets} on {scale.pool:,}" for key, scale in setting.scales.items()}
        for name, setting in settings.items()
    ]
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Settings; for each scale, shadow + target models on so many records", title_justify="left")
    for column in rows[0]:
        table.add_column(column, no_wrap=column == "setting")
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)


def _show(result: Mapping[str, Any], saved: list[Path]) -> None:
    """The first table of the paper for this setting, the ceilings and the paper's number beside ours."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from noshadow.bench.measure import RECALLS
    from noshadow.bench.paper import TABLE_1

    console = Console()
    models = f"{result['shadows']} shadow and {result['targets']} target models"
    setting = f"{result['data']}, {result['model']}: {models}, {result['pool']:,} records"
    console.print(f"\n{setting}", style="bold", highlight=False)
    if result["note"]:
        console.print(f"Differs from the paper: {result['note']}", markup=False, highlight=False)
    title = "Of the records that LiRA exposes most, how many are found, in % (± over targets)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("score", no_wrap=True)
    for column in ("1% at 5%", "0.1%", "1%", "5%", "Spearman ρ", "paper"):
        table.add_column(column, justify="right", no_wrap=True)
    lira = result["attacks"]["lira"]
    paper = TABLE_1.get(result["setting"], {})
    for name, row in lira["scores"].items():
        printed = paper.get(name)
        theirs = "" if printed is None else f"{printed[0]:.1f}±{printed[1]:.0f}"
        table.add_row(name, *(_cell(row[key]) for key in RECALLS), f"{row['spearman']['mean']:.3f}", theirs)
    for name, found in (("LiRA again", lira["ceiling"]), ("a perfect score", lira["oracle"])):
        numbers = (*(_cell(found[key]) for key in RECALLS), f"{found['spearman']['mean']:.3f}")
        table.add_row(name, *numbers, "", style="dim")
    console.print(table)
    seconds = result["seconds"]
    console.print(
        "1% at 5%: the 1 % most exposed, among the 5 % with the highest scores; paper: its number for that; 0.1%, 1%, "
        "5%: as many are sought as kept.\nLiRA again: half of its shadow models against the other half; a perfect "
        "score: one that knows how exposed each record is, against so noisy a truth.\n"
        f"Core-seconds: {seconds['shadows']:.3g} to train the shadow models, {seconds['scores']:.2g} to score one "
        f"target, {seconds['speedup']:,.0f} times less.\nSaved: {saved[0]}"
        + (f" and {len(saved) - 1} figures beside it" if len(saved) > 1 else ""),
        markup=False,
        highlight=False,
    )


def _cell(value: Mapping[str, Any]) -> str:
    spread = "" if value["std"] is None else f"±{100 * value['std']:.0f}"
    return f"{100 * value['mean']:.1f}{spread}"
