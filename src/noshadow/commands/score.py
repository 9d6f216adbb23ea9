"""``noshadow score FILE.npz``: scores from arrays on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from noshadow.commands.policy import explained_errors
from noshadow.commands.render import show_audit
from noshadow.errors import FileError

__all__ = ["score"]

_REQUIRED = ("features", "outputs", "targets")
_WEIGHTS = ("sample_weight", "class_weight", "coefficients")
_OPTIONAL = ("ids", "head", "ridge", "trace", "label_smoothing", *_WEIGHTS)
_FLAGS = ("bias", "penalize_bias", "full_step", "curvature", "refine", "memory")
_OPTIONS = {name: f"--{name.replace('_', '-')}" for name in (*_FLAGS, "output", "top")}
_CONTENTS = {"file": "FILE", **{name: f"{name} in FILE" for name in (*_REQUIRED, *_OPTIONAL)}}


def score(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", exists=True, help="An .npz with arrays 'features', 'outputs' and 'targets'."),
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
      noshadow score layer.npz --json > scores.json
    """
    options = {"head": head, "ridge": ridge, "trace": trace}
    given = {name: f"--{name}" for name, value in options.items() if value is not None}
    with explained_errors({**_OPTIONS, **given}, _CONTENTS, more=tuple(options)) as command:
        from noshadow.audit import audit
        from noshadow.files import check_output
        from noshadow.layer import LastLayer
        from noshadow.npz import read_npy, read_npz
        from noshadow.tables import TABLES
        from noshadow.trace import Trace

        if output is not None:
            check_output(output, TABLES)
        arrays = read_npz(file, _REQUIRED, _OPTIONAL)
        layer = LastLayer(
            arrays["features"],
            arrays["outputs"],
            arrays["targets"],
            head=head if head is not None else str(_one(arrays, "head", "softmax")),
            ridge=ridge if ridge is not None else float(_one(arrays, "ridge", 0.0)),
            bias=bias,
            penalize_bias=penalize_bias,
            label_smoothing=float(_one(arrays, "label_smoothing", 0.0)),
            **{name: arrays.get(name) for name in _WEIGHTS},
        )
        ids: Any = arrays.get("ids")
        if ids is not None and ids.ndim != 1:
            raise FileError(f"ids: expected shape (n,), a name per record, got {ids.shape}")
        remembered: Any = arrays.get("trace")
        if trace is not None:
            remembered = read_npy(trace, "trace") if trace.suffix == ".npy" else Trace.load(trace)
        result = audit(
            layer,
            ids=ids,
            trace=remembered,
            curvature=curvature,
            refine=refine,
            memory=memory,
            full_step=full_step,
        )
        saved = str(result.save(output)) if output else None
        show_audit(result, top, as_json, saved, command)


def _one(arrays: dict[str, Any], name: str, default: str | float) -> Any:
    """The one value of an array that holds a word or a number, as the default is."""
    if name not in arrays:
        return default
    value = arrays[name]
    if value.size != 1 or value.dtype.kind not in ("US" if isinstance(default, str) else "fiu"):
        expected = "word" if isinstance(default, str) else "number"
        raise FileError(f"{name}: expected one {expected}, got {value.dtype} of shape {value.shape}")
    return value.item()
