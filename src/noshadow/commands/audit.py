"""``noshadow audit FILE``: a saved layer, arrays, a scikit-learn model or one's own code; a gate for pipelines."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from noshadow.commands.policy import OVER_POLICY, explained_errors
from noshadow.commands.rules import judged, policy_options, read_policy, takes_policy
from noshadow.errors import FileError

if TYPE_CHECKING:
    from noshadow.commands.policy import Command
    from noshadow.findings import Audit
    from noshadow.gate import Verdict

__all__ = ["SCHEMA", "audit", "facts_of"]

SCHEMA = 1
"""Of what ``--json`` prints (``noshadow/schemas/audit.json``); raised when the same names mean something else."""
_HELD = (
    "trace",
    "held_out",
    "rerun",
    "head",
    "ridge",
    "bias",
    "penalize_bias",
    "label_smoothing",
)  # by a file, perhaps
_OWN = (
    *("data", "target", "checkpoint", "trust", "rerun_held_out", "weight_decay", "optimizer", "loss", "layer"),
    *("curvature", "refine", "memory", "full_step", "policy", "top"),
)
_OPTIONS = {"file": "FILE", "folder": "--output", **{name: f"--{name.replace('_', '-')}" for name in _OWN}}
_OPTIONS |= policy_options()
_CONTENTS = {name: f"{name} in FILE" for name in ("features", "outputs", "targets", "ids", "group", "groups", *_HELD)}
_CONTENTS |= {"path": "FILE", "records": "FILE", "model": "FILE", "class_names": "class_names in FILE"}


@takes_policy
def audit(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="layer.safetensors, arrays (.npz, .parquet, a folder), a model (.skops), or package.module:build.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder for audit.parquet and audit.html; made if it is not there."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="The policy in a TOML file: fail_above = 0.9, max_records = 0.")
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(help="Records that the model was not trained on, in the form of FILE, or of --data. Gives rates."),
    ] = None,
    rerun: Annotated[
        Path | None,
        typer.Option(help="A second model of the same recipe, in the form of FILE, or its weights. Calibrates them."),
    ] = None,
    rerun_held_out: Annotated[
        Path | None, typer.Option(help="With a layer or arrays: the second model's, for the held-out records.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="What training remembered: a saved noshadow.Trace, or losses (epochs, n) in an .npy."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="The training records of a model: .npz with X and y, .parquet, or package.module:name."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The column of the targets in a .parquet of records. Default: target.")
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Weights for package.module:build, .safetensors.")] = None,
    trust: Annotated[
        list[str] | None, typer.Option(help="A type in a .skops model that may be made. Can be repeated.")
    ] = None,
    head: Annotated[str | None, typer.Option(help="squared, logistic or softmax, where it is not known.")] = None,
    ridge: Annotated[float | None, typer.Option(help="Λ of Σ loss + Λ/2 ‖θ‖², where it is not known.")] = None,
    bias: Annotated[bool | None, typer.Option(help="Arrays: whether the layer has a bias. Default: yes.")] = None,
    penalize_bias: Annotated[
        bool | None, typer.Option(help="Arrays: whether the ridge covers the bias. Default: yes.")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="One's own code: the optimizer's λ.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="One's own code: sgd, adam, …")] = None,
    loss: Annotated[str | None, typer.Option(help="One's own code: mse, cross_entropy, bce_with_logits.")] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="One's own code: ε of the labels.")] = None,
    layer: Annotated[str | None, typer.Option(help="One's own code: which linear layer.")] = None,
    curvature: Annotated[
        str, typer.Option(help="dense (exact), blocks, kronecker, iterative, or auto: exact while it fits.")
    ] = "auto",
    refine: Annotated[
        float | None, typer.Option(help="Share of the records, the highest, that an approximation scores exactly.")
    ] = None,
    memory: Annotated[float | None, typer.Option(help="Working memory in GiB. Default: half of what is free.")] = None,
    full_step: Annotated[
        bool, typer.Option("--full-step", help="Score the heads that one more Newton step would give.")
    ] = False,
    top: Annotated[
        int, typer.Option(min=0, help="How many of the most exposed records to name. Default: none, they are private.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
    *,
    rules: dict[str, Any],
) -> None:
    """Audit a model: who is exposed, within policy?

    FILE is a layer that was saved with all that an audit takes, arrays of a last layer, a scikit-learn model that skops
    wrote, or your own code. Of the first three nothing is unpickled, imported or run; your own code is run.
    Exit codes: 0 within policy, 1 over it, 2 usage, 3 could not audit.

    \b
    In Python, to make the file:
      layer = noshadow.last_layer(model, data)
      layer.save("layer.safetensors", ids=…, held_out=…)

    \b
    Examples:
      noshadow audit layer.safetensors -o audit/
      noshadow audit layer.safetensors --fail-above 0.9
      noshadow audit layer.safetensors --policy policy.toml
      noshadow audit arrays.npz --head softmax --top 10
      noshadow audit model.skops --data train.parquet
      noshadow audit pkg.models:build --data pkg.data:train
      noshadow audit layer.safetensors --json > audit.json
    """
    asked = {
        "data": data,
        "target": target,
        "checkpoint": checkpoint,
        "trust": tuple(trust or ()),
        "trace": trace,
        "held_out": held_out,
        "rerun": rerun,
        "rerun_held_out": rerun_held_out,
        "head": head,
        "ridge": ridge,
        "bias": bias,
        "penalize_bias": penalize_bias,
        "weight_decay": weight_decay,
        "optimizer": optimizer,
        "loss": loss,
        "label_smoothing": label_smoothing,
        "layer": layer,
    }
    given = {name: f"--{name.replace('_', '-')}" for name in _HELD if asked[name] is not None}
    with explained_errors({**_OPTIONS, **given}, _CONTENTS, more=_HELD) as command:
        from noshadow.audit import audit as audited
        from noshadow.commands.subjects import Asked, find_subject

        rule = read_policy(policy, **rules)
        folder = None if output is None else _folder(output)
        subject = find_subject(file, Asked(**cast(Any, asked)))
        choices: dict[str, Any] = {"curvature": curvature, "refine": refine, "memory": memory, "full_step": full_step}
        result = _by_command(audited(subject.model, **subject.arguments, **choices))
        saved = {} if folder is None else {"audit": str(result.save(folder / "audit.parquet"))}
        verdict, unjudged = None, None
        try:
            verdict = None if rule is None else judged(rule, result)
        except FileError as error:
            unjudged = error
        if folder is not None:  # also where it cannot be judged: the report of an older audit would lie beside this one
            report = result.report(folder / "audit.html", policy=None if unjudged else rule)
            saved["report"] = str(report)
        if unjudged is not None:
            raise unjudged
        if as_json:
            from noshadow.commands.output import print_json

            print_json(facts_of(result, verdict, command, saved, top))
        else:
            from noshadow.commands.render import show_findings

            show_findings(result, verdict, command, subject.words, saved, top)
        if verdict is not None and not verdict.met:
            raise typer.Exit(OVER_POLICY)


def facts_of(
    audit: Audit, verdict: Verdict | None, command: Command, saved: dict[str, str], top: int = 0
) -> dict[str, Any]:
    """What ``--json`` prints: figures of the whole; records only where so many were asked for."""
    from noshadow.bands import band_counts

    facts = audit.metadata
    rates = audit.table.get("attack_accuracy")
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "noshadow": facts["noshadow"],
        "date": facts["date"],
        "model": {name: facts[name] for name in ("model", "head", "records", "features", "outputs", "ridge")},
        "rated": rates is not None,
        "bands": band_counts(rates, audit.table["flagged"]),
        "summary": audit.summary(),
        "policy": None,
        "calibration": facts["calibration"],
        "curvature": {name: facts[name] for name in ("curvature", "curvature_exact", "accuracy")},
        "trace": facts["trace"],
        "notes": command.notes,
        "advice": [command.hint(hint) for hint in facts.get("advice", ())],
        "provenance": facts["provenance"],
        "saved": saved,
    }
    if verdict is not None:
        found["policy"] = {
            **asdict(verdict.policy),
            "met": verdict.met,
            "over": verdict.over,
            "sentence": verdict.sentence,
        }
    if top:
        found["top"] = audit.top(min(top, len(audit.table))).to_dict("records")
    return found


def _folder(path: Path) -> Path:
    """The folder that is written into; refused now if that could not be done later."""
    from noshadow.files import check_writable, private_folder

    try:
        folder = private_folder(path)
    except OSError as error:
        raise FileError(f"folder: {path} cannot be made ({error.strerror or error})") from None
    check_writable(folder, "folder")
    return folder


def _by_command(result: Audit) -> Audit:
    """The audit, which knows the command line that made it."""
    import shlex
    import sys
    from dataclasses import replace

    name = Path(sys.argv[0]).name
    line = shlex.join(["noshadow", *sys.argv[1:]]) if name in ("noshadow", "__main__.py") else None
    provenance = {**result.metadata["provenance"], "command": line}
    return replace(result, metadata={**result.metadata, "provenance": provenance})
