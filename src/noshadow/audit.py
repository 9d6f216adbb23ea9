"""audit(): front door → LastLayer → scores → Audit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from noshadow.bundle import Bundle
from noshadow.columns import class_names_of, group_columns, names_of, nearest_classes, target_columns
from noshadow.comparison import compare_runs
from noshadow.curvature import choose
from noshadow.diagnostics import concerns
from noshadow.errors import InputError, NoshadowWarning
from noshadow.extract import extract, holds_data
from noshadow.facts import advice_of, metadata_of
from noshadow.findings import SCHEMA, Audit
from noshadow.heads import HEADS
from noshadow.layer import LastLayer
from noshadow.objective import Objective
from noshadow.pairing import require_same_order
from noshadow.progress import Progress
from noshadow.provenance import provenance_of
from noshadow.reading import features_of
from noshadow.scores import first_of
from noshadow.scoring import score_with_diagnostics
from noshadow.trace import Trace

__all__ = ["SCHEMA", "Audit", "audit"]


def audit(
    model: Any,
    data: Any = None,
    ids: Sequence[Any] | None = None,
    *,
    groups: Any = None,
    class_names: Any = None,
    head: str | None = None,
    ridge: float | None = None,
    weight_decay: float | None = None,
    optimizer: Any = None,
    loss: Any = None,
    sample_weight: Any = None,
    class_weight: Any = None,
    label_smoothing: float | None = None,
    layer: str | None = None,
    output: str | int | None = None,
    scores: Sequence[str] | None = None,
    trace: Any = None,
    rerun: Any = None,
    held_out: Any = None,
    full_step: bool = False,
    batch_size: int = 256,
    curvature: str = "auto",
    refine: float | None = None,
    memory: float | None = None,
    progress: Progress = None,
    cache: str | Path | None = None,
    cache_dtype: str | None = None,
    store: str | Path | None = None,
    engine: str | None = None,
    address: str | None = None,
) -> Audit:
    """Score every training record of a trained model.

    Parameters
    ----------
    model : torch.nn.Module, scikit-learn estimator, LastLayer or Bundle
        A fitted model; a Pipeline or a search will do. A LastLayer comes without data; a Bundle, which was saved, with
        what was saved beside it.
    data : Dataset, DataLoader or (X, y)
        Its n training records.
    ids : sequence (n,), optional
        A name for each record; None: the index of X where it is a frame with one, else 0, 1, …
    groups : sequence (n,), mapping or DataFrame, optional
        What the records belong to (a site, a sex, an age band): the column ``group``, or ``group_NAME`` for each of
        several; reports count the exposed by them.
    class_names : sequence or mapping, optional
        What reports call the classes: a name for each in the order of the outputs, or by class; of several labels the
        labels.
    head : "squared", "logistic" or "softmax", optional
        None: read off the model and the targets, or asked for where they leave a choice; several logistic outputs are
        independent labels.
    ridge : float, optional
        Λ of Σ loss + Λ/2 ‖θ‖²; None: read off the estimator, or from weight_decay.
    weight_decay : float, optional
        torch optimizers' λ on a mean loss.
    optimizer : str or torch.optim.Optimizer, optional
        "sgd", "adam", …, or the optimizer itself, whose weight decay is read: Λ = nλ for SGD, 0 for Adam and its kin,
        which minimise no such objective.
    loss : str or torch criterion, optional
        The loss that the model was trained with: "mse", "bce_with_logits", "cross_entropy", "log_loss", or a torch
        criterion, whose weights and label smoothing are read; says the head too.
    sample_weight : array (n,), optional
        A weight per record that its loss was multiplied by, in the data's order.
    class_weight : array or mapping, optional
        A weight per class, likewise; or a mapping from class to weight.
    label_smoothing : float, optional
        ε of a softmax trained on (1 − ε)·e_y + ε/m.
    layer, output : str or int, optional
        Which linear layer, which of several outputs of a torch module to audit.
    scores : sequence of str, optional
        Names of scores; None: all that apply.
    trace : Trace or array (epochs, n), optional
        What training remembers of each record: a ``Trace`` of this run, of a rerun with another seed or of its
        checkpoints, or its loss after each epoch.
    rerun : model, optional
        A second model of the same recipe, trained on the same records with another seed: how far the attack's statistic
        moves between runs. Where the model is a LastLayer, one of the same records, or a pair of those of members and
        held-out records.
    held_out : data, optional
        Records that neither model was trained on, in the form of the data; a LastLayer where the model is one. With it
        come the predicted rates ``attack_power``, ``attack_accuracy`` and ``attack_tpr``; the rerun calibrates them.
    full_step : bool
        Score the heads that one more Newton step would give (see ``noshadow.score``).
    batch_size : int
        Records in a forward pass of a torch module.
    curvature : str
        How the Hessian is treated (see ``noshadow.score``); "auto": exact while that fits into memory.
    refine : float, optional
        Share of the records, the highest ones, that an approximation is to score exactly; which columns that makes
        exact is said at ``noshadow.score``.
    memory : float, optional
        Working memory in GiB; None: half of what is free.
    progress : Progress, optional
        A bar or none, or a function that is told; None: a bar where stderr is a terminal.
    cache : str or Path, optional
        A folder for what the last layer of a torch module sees and gives: it is then not held in memory, and an audit
        that was interrupted goes on from there. The data are read again and compared, only the forward pass is spared;
        a cache of another model, of other data or options is refused. Rerun and held-out records have folders in it.
    cache_dtype : "float32" or "bfloat16", optional
        What features are kept in; None: as the model gives them. bfloat16 takes half the room and rounds to 3 digits.
    store, engine, address : str, optional
        A folder from which an interrupted scoring goes on; "ray" and the address of its cluster (see
        ``noshadow.score``), whose tasks also make the shards of the cache, if there is one: for a map-style Dataset.

    Returns
    -------
    Audit

    Raises
    ------
    InputError
        A model that no front door knows, data that do not fit it, an objective that contradicts it; what is asked for
        where the model leaves a choice.

    Warns
    -----
    NoshadowWarning
        What to know before trusting the numbers; ``Audit.notes`` has the same.

    Examples
    --------
    >>> import noshadow
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> x, y = load_diabetes(return_X_y=True)
    >>> audit = noshadow.audit(Ridge(alpha=0.1).fit(x, y), (x, y))
    >>> audit
    Audit(442 records, squared head, ranked by 'exposure')
    >>> len(audit.top(0.01))
    4
    """
    if isinstance(model, Bundle):
        beside = model.beside(
            ids=ids, groups=groups, trace=trace, held_out=held_out, rerun=rerun, class_names=class_names
        )
        ids, groups, class_names = (beside[name] for name in ("ids", "groups", "class_names"))
        trace, held_out, rerun = (beside[name] for name in ("trace", "held_out", "rerun"))
        model = model.layer
    if head is None and loss is None and isinstance(model, torch.nn.Module) and isinstance(trace, Trace):
        head = _told_by(trace)
    objective = Objective(
        head, loss, ridge, weight_decay, sample_weight, class_weight, label_smoothing, optimizer=optimizer
    )
    choices: dict[str, Any] = {"layer": layer, "output": output, "batch_size": batch_size}
    choices |= {"fits": lambda size: choose(curvature, size, memory), "progress": progress}
    choices |= {"cache_dtype": cache_dtype, "engine": engine, "address": address}
    with _gathered() as warned:
        found = extract(model, data, objective, **choices, cache=cache)
    if isinstance(data, (tuple, list)) and len(data):
        several = isinstance(groups, Mapping)
        for name, values in {"ids": ids, **({} if several else {"groups": groups})}.items():
            require_same_order(data[0], values, "X", name)
        for name, values in groups.items() if several else ():
            require_same_order(data[0], values, "X", f"groups[{name!r}]")
    about = {
        "id": names_of(ids, found.index, found.layer.n),
        **target_columns(found),
        **nearest_classes(found),
        **group_columns(groups, found.layer.n),
    }
    called = class_names_of(class_names, found)

    def read(other: Any, records: Any) -> LastLayer:
        with _gathered():  # what there is to know of the model was said
            place = None if cache is None else Path(cache) / _part(other is model, records is data)
            how = choices | {"fits": lambda _: None, "cache": place}  # no Hessian is made of them
            with _named(rerun=other is not model, held_out=records is not data):
                return extract(other, records, Objective(found.layer.head), **how).layer

    subject = model
    if holds_data(model):
        subject, rerun, held_out = found.layer, _as_layers(rerun), _as_layers(held_out)
    with _gathered() as compared:
        spreads, others = compare_runs(subject, data, found.layer, rerun, held_out, read)
    with _gathered() as told:
        frame, diagnostics = score_with_diagnostics(
            found.layer,
            scores,
            trace,
            spread=spreads,
            held_out=others,
            fixed_features=features_of(model, found) != "trained",
            source="rerun",
            curvature=curvature,
            refine=refine,
            full_step=full_step,
            memory=memory,
            progress=progress,
            store=store,
            engine=engine,
            address=address,
        )
    fitted = features_of(model, found) == "fixed"
    found_out = concerns(found.layer, diagnostics, fitted)
    all_notes = (*found.notes, *warned, *found.layer.notes, *compared, *told, *found_out)
    notes, said = tuple(dict.fromkeys(all_notes)), _said(model)
    for note in notes:
        if note not in said:
            warnings.warn(note, NoshadowWarning, stacklevel=2)
    flagged = np.zeros(found.layer.n, dtype=bool)
    flagged[list(diagnostics.certain)] = True
    table = pd.concat([pd.DataFrame(about), frame], axis=1).assign(flagged=flagged)
    ranking = first_of(frame.columns)
    metadata = metadata_of(found, diagnostics, trace, ranked_by=ranking, full_step=full_step)
    metadata |= {"class_names": called, "provenance": provenance_of(model, found.layer)}
    metadata["advice"] = advice_of(metadata, found.layer, fitted)
    return Audit(table, metadata, notes)


def _told_by(trace: Trace) -> str | None:
    """The head that a run was recorded with, where several losses are trained on such outputs; those of several classes
    leave no choice."""
    kind = HEADS.get(trace.memory.head or "")
    return kind.name if kind is not None and kind.fewest_outputs == 1 else None


@contextmanager
def _gathered() -> Iterator[list[str]]:
    """The messages of noshadow's own warnings in a block, which are not shown; other warnings go on their way."""
    messages: list[str] = []
    others: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NoshadowWarning)
            try:
                yield messages
            finally:
                messages += [str(one.message) for one in caught if issubclass(one.category, NoshadowWarning)]
                others += [one for one in caught if not issubclass(one.category, NoshadowWarning)]
    finally:
        for one in others:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, source=one.source)


@contextmanager
def _named(rerun: bool, held_out: bool) -> Iterator[None]:
    """What is refused of a second model or of other records is refused under the name that it was passed by."""
    try:
        yield
    except InputError as error:
        argument, found, reason = str(error).partition(":")
        names = {"model": "rerun"} if rerun else {}
        names |= {"data": "held_out"} if held_out else {}
        whose = names.get("data", names.get("model"))
        if not found or whose is None:
            raise
        # what is said of targets, or of the forward pass, is said of these records and not of the members
        named = f"{names[argument]}:{reason}" if argument in names else f"{whose}, {error}"
        raise type(error)(named) from None


def _as_layers(given: Any) -> Any:
    """What goes with a model that holds its data, or a pair of it: layers, where it holds its data too."""
    if isinstance(given, (tuple, list)):
        return tuple(map(_as_layers, given))
    return extract(given).layer if holds_data(given) else given


def _part(own: bool, members: bool) -> str:
    """The folder within a cache of one more forward pass."""
    return f"{'model' if own else 'rerun'}-{'members' if members else 'held-out'}"


def _said(model: Any) -> tuple[str, ...]:
    """The notes that were given when the layer was made; those of a file were given to somebody else."""
    if not isinstance(model, LastLayer):
        return ()
    read = model.origin is None or model.origin.file is not None
    return model.notes if read else (*model.notes, *(model.origin.notes if model.origin else ()))
