"""``noshadow score FILE``: scores from arrays on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noshadow.commands.inputs import OPTIONAL, REQUIRED, read_arrays
from noshadow.commands.policy import explained_errors
from noshadow.commands.render import show_audit

__all__ = ["score"]

_FLAGS = ("bias", "penalize_bias", "full_step", "curvature", "refine", "memory")
_OPTIONS = {name: f"--{name.replace('_', '-')}" for name in (*_FLAGS, "output", "top", "rerun_held_out")}
_CONTENTS = {"file": "FILE", "records": "FILE", "groups": "group in FILE"}
_CONTENTS |= {name: f"{name} in FILE" for name in (*REQUIRED, *OPTIONAL)}


def score(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            exists=True,
            help="An .npz, .parquet or .safetensors with 'features', 'outputs' and 'targets', or a folder of .npy "
            "files or of shards.",
        ),
    ],
    head: Annotated[
        str | None, typer.Option(help="squared, logistic or softmax. Default: 'head' in the file, else softmax.")
    ] = None,
    ridge: Annotated[
        float | None, typer.Option(help="Λ of Σ loss + Λ/2 ‖θ‖². Default: 'ridge' in the file, else 0.")
    ] = None,
    bias: Annotated[bool, typer.Option(help="Whether the layer has a bias.")] = True,
    penalize_bias: Annotated[bool, typer.Option(help="Whether the ridge covers the bias.")] = True,
    curvature: Annotated[
        str,
        typer.Option(help="dense (exact), blocks, kronecker, iterative, or auto: exact while it fits into memory."),
    ] = "auto",
    refine: Annotated[
        float | None, typer.Option(help="Share of the records, the highest, that an approximation scores exactly.")
    ] = None,
    memory: Annotated[float | None, typer.Option(help="Working memory in GiB. Default: half of what is free.")] = None,
    full_step: Annotated[
        bool,
        typer.Option(
            "--full-step", help="Score the heads that one more Newton step would give, with and without the record."
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="What training remembered: a saved noshadow.Trace (.safetensors), or losses (epochs, n) (.npy). "
            "Default: 'trace' in the file, if any.",
        ),
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            exists=True, help="The same arrays for records that the model was not trained on. Gives success rates."
        ),
    ] = None,
    rerun: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="The same arrays, of a second model of the same recipe with another seed, for the records of FILE. "
            "Calibrates the rates.",
        ),
    ] = None,
    rerun_held_out: Annotated[
        Path | None, typer.Option(exists=True, help="The second model's for the held-out records; goes with both.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Save all records here, .parquet or .csv.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many of the most exposed records to print.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
) -> None:
    """Score every training record of a last layer.

    FILE holds 'features' (n, p), the inputs of the last layer; 'outputs' (n, m), its logits or predictions;
    'targets', classes or values; and, if wanted, 'ids' (n,), 'head', 'ridge', 'sample_weight' (n,), 'class_weight',
    'label_smoothing', 'coefficients' (p + 1, m) and 'trace' (epochs, n), the loss of each record after each epoch of
    training. Other arrays are not read. Bigger scores mean more exposed.

    \b
    In Python, to make the file:
      np.savez("layer.npz", features=…, outputs=…, targets=…)

    \b
    Examples:
      noshadow score layer.npz --head softmax
      noshadow score layer.npz -o scores.parquet
      noshadow score layer.npz --ridge 12.5 --top 20
      noshadow score layer.npz --trace trace.safetensors
      noshadow score layer.npz --held-out others.npz
      noshadow score layer.npz --json > scores.json
    """
    options = {"head": head, "ridge": ridge, "trace": trace, "held_out": held_out, "rerun": rerun}
    given = {name: f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None}
    with explained_errors({**_OPTIONS, **given}, _CONTENTS, more=tuple(options)) as command:
        from noshadow.audit import audit
        from noshadow.commands.subjects import Asked, other_layers
        from noshadow.files import check_output
        from noshadow.tables import TABLES

        if output is not None:
            check_output(output, TABLES)
        found = read_arrays(file, head, ridge, bias, penalize_bias)
        others = None if held_out is None else str(held_out)
        asked = Asked(trace=trace, held_out=others, rerun=rerun, rerun_held_out=rerun_held_out)
        beside = {"ids": found.ids, "groups": found.groups, "trace": found.trace}
        result = audit(
            found.layer,
            **{**beside, **other_layers(asked, found.layer.head)},
            curvature=curvature,
            refine=refine,
            memory=memory,
            full_step=full_step,
        )
        saved = str(result.save(output)) if output else None
        show_audit(result, top, as_json, saved, command)
