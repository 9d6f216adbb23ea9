"""``noshadow score FILE.npz``: scores from arrays on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from noshadow.audit import audit
from noshadow.commands.output import explained_errors, show_audit
from noshadow.errors import InputError
from noshadow.layer import LastLayer

_REQUIRED = ("features", "outputs", "targets")


def score(
    file: Annotated[Path, typer.Argument(help="An .npz with arrays 'features', 'outputs' and 'targets'.")],
    head: Annotated[
        str | None, typer.Option(help="squared, logistic or softmax. Default: 'head' in the file, else softmax.")
    ] = None,
    ridge: Annotated[
        float | None, typer.Option(help="Λ of Σ loss + Λ/2 ‖θ‖². Default: 'ridge' in the file, else 0.")
    ] = None,
    bias: Annotated[bool, typer.Option(help="Whether the layer has a bias.")] = True,
    penalize_bias: Annotated[bool, typer.Option(help="Whether the ridge covers the bias.")] = True,
    full_step: Annotated[bool, typer.Option(help="Do not assume that the head was trained to convergence.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Save all records here, .parquet or .csv.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many of the most exposed records to print.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
) -> None:
    """Score every training record from the arrays of a model's last layer.

    FILE holds 'features' (n, p), the inputs of the last layer; 'outputs' (n, m), its logits or predictions;
    'targets', classes or values; and, if wanted, 'ids' (n,), 'head', 'ridge' and 'trace' (epochs, n), the loss of each
    record after each epoch of training. Bigger scores mean more exposed.

    Example: noshadow score layer.npz --head softmax --ridge 12.5 -o scores.parquet
    """
    with explained_errors():
        arrays = _read(file)
        layer = LastLayer(
            arrays["features"],
            arrays["outputs"],
            arrays["targets"],
            head=head or str(arrays.get("head", "softmax")),
            ridge=ridge if ridge is not None else float(arrays.get("ridge", 0.0)),
            bias=bias,
            penalize_bias=penalize_bias,
        )
        ids: Any = arrays.get("ids")
        result = audit(layer, ids=ids, trace=arrays.get("trace"), full_step=full_step)
        saved = str(result.save(output)) if output else None
        show_audit(result, top, as_json, saved)


def _read(file: Path) -> dict[str, Any]:
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"file: {file} holds one array; use np.savez(…, features=…, outputs=…, targets=…)")
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(f"file: {file} does not exist") from None
    except (ValueError, OSError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"file: {file} is not an .npz of plain arrays ({error})") from None
    missing = [name for name in _REQUIRED if name not in arrays]
    if missing:
        raise InputError(f"file: {file} has no array {missing[0]!r}; it holds {', '.join(arrays) or 'nothing'}")
    return arrays
