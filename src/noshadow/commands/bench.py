"""``noshadow bench SETTING...``: the paper's experiments, from data to tables and figures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noshadow.commands.output import explained_errors, print_json
from noshadow.commands.render import print_notes, show_result, show_settings
from noshadow.errors import InputError

if TYPE_CHECKING:
    from noshadow.bench.setting import Setting

__all__ = ["EngineName", "ScaleName", "bench"]

_TRAINING = ("shadows", "pool", "backbone", "seed", "engine", "workers", "address")
_NAMED = (*_TRAINING, "data", "cache", "store", "output", "pages", "readme")
_OPTIONS = {"setting": "SETTING", "results": "RESULTS", **{name: f"--{name}" for name in _NAMED}}


class ScaleName(StrEnum):
    """How much is run."""

    smoke = "smoke"
    cpu = "cpu"
    paper = "paper"


class EngineName(StrEnum):
    """Where models are trained."""

    processes = "processes"
    ray = "ray"
    serial = "serial"


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "noshadow"


def bench(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="SETTING", help="Settings by name, or all. With --pages: results."),
    ] = None,
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
        Path | None,
        typer.Option(
            "--output", "-o", help="Folder for results and figures. Default: STORE/results; with --pages, docs."
        ),
    ] = None,
    rescore: Annotated[
        bool,
        typer.Option(
            "--rescore", help="Train nothing: score the stored models again. Without SETTING: all that are stored."
        ),
    ] = False,
    figures: Annotated[bool, typer.Option(help="Draw the figures, as PNG and SVG.")] = True,
    pages: Annotated[
        bool,
        typer.Option(
            "--pages",
            help="Run nothing: write pages and figures from results, which are named in place of settings, files or "
            "folders. Default: STORE/results.",
        ),
    ] = False,
    readme: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="With --pages: put the short table between its markers, too."),
    ] = None,
    list_settings: Annotated[
        bool, typer.Option("--list", help="Show the settings and their scales, and stop.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Rerun the experiments of the paper.

    Do the scores of one model find the records that LiRA finds with many? For each setting, shadow and target models
    are trained (or taken from the store), attacked with LiRA, RMIA and Shokri's attack, and scored; then the recall of
    every score is measured, beside what the attack finds of itself, what a perfect score would find, and the
    paper's number. A run that was interrupted continues where it stopped when the same command is given again.

    \b
    Examples:
      noshadow bench --list
      noshadow bench energy-mlp --scale smoke
      noshadow bench california-mlp energy-mlp --data DIR
      noshadow bench --rescore -o results
      noshadow bench --pages results -o docs
    """
    with explained_errors(_OPTIONS) as command:
        if pages:
            if rescore or list_settings:
                raise InputError(f"pages: it runs nothing; leave --{'rescore' if rescore else 'list'} out")
            found = [Path(name) for name in settings or [str(store / "results")]]
            _write_pages(found, output or Path("docs"), readme, as_json)
            return
        if readme is not None:
            raise InputError("readme: it is filled by pages=True")
        from noshadow.bench.result import save_result
        from noshadow.bench.run import run_setting
        from noshadow.bench.setting import all_settings, find_settings
        from noshadow.bench.source import DataSource
        from noshadow.bench.typed_json import to_json
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
            result = run_setting(
                setting,
                used,
                DataSource(data, cache or _cache_folder(), used.backbone),
                store / f"{setting.name}-{scale.value}-{used.pool}-{seed}",
                scale_name=scale.value,
                seed=seed,
                rescore=rescore,
                engine={"engine": used_engine.value, "workers": workers, "address": address},
            )
            result = replace(result, notes=tuple(command.notes[known:]))
            saved = [save_result(result, folder)]
            if figures:
                from noshadow.bench.pages import draw_setting

                saved += draw_setting(result, folder)
            results.append(result)
            if not as_json:
                show_result(result, saved)
                print_notes(result.notes)
        if as_json:
            print_json(to_json(results))


def _show_settings(settings: Mapping[str, Setting], as_json: bool) -> None:
    rows = [
        {"setting": name, "data": setting.data, "model": setting.model_name, "head": setting.head}
        | {key: f"{scale.shadows}+{scale.targets} on {scale.pool:,}" for key, scale in setting.scales.items()}
        for name, setting in settings.items()
    ]
    if as_json:
        print_json(rows)
    else:
        show_settings(rows)


def _write_pages(results: list[Path], folder: Path, readme: Path | None, as_json: bool) -> None:
    from noshadow.bench.pages import write_pages
    from noshadow.bench.result import load_results
    from noshadow.files import check_writable

    found = load_results(results)
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder, "output")
    written = write_pages(found, folder, readme)
    if as_json:
        print_json({"written": [str(path) for path in written]})
    else:
        typer.echo(f"wrote {written[0]}, {len(written) - 1} more pages and figures beside it")
