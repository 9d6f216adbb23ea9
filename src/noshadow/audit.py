"""audit(): front door → LastLayer → scores → Audit."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from noshadow._version import __version__
from noshadow.bands import band_counts
from noshadow.bundle import Bundle
from noshadow.columns import class_names_of, group_columns, names_of, nearest_classes, target_columns
from noshadow.comparison import compare_runs
from noshadow.curvature import choose
from noshadow.diagnostics import Diagnostics, concerns
from noshadow.errors import FileError, InputError, NoshadowWarning
from noshadow.extract import Extracted, extract
from noshadow.layer import LastLayer
from noshadow.objective import Objective
from noshadow.progress import Progress
from noshadow.provenance import provenance_of
from noshadow.reading import features_of
from noshadow.scoring import score_with_diagnostics
from noshadow.tables import load_table, save_table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from noshadow.gate import Policy

__all__ = ["SCHEMA", "Audit", "audit"]

SCHEMA = 1
"""Of saved audits; raised when the same names mean something else."""
_NEEDED = ("records", "head", "features", "outputs", "ranked_by", "provenance")
_PREFERENCE = ("exposure", "leave_one_out", "newton", "influence", "loss")


@dataclass(frozen=True, eq=False)
class Audit:
    """Every training record with its scores, and what is known of the model.

    Attributes
    ----------
    table : pandas.DataFrame
        A row per record: ``id``, ``target``, ``nearest_class`` (of classes: the likeliest one other than the record's
        own), the groups, a column for each score, ``flagged`` (leverage 1: fully exposed).
    metadata : dict
        Version, date, model, head, sizes, ridge, rank, stationarity, …; under ``provenance`` of what it is an audit.
    notes : tuple of str
        What to know before trusting the numbers, a sentence each.

    Examples
    --------
    >>> import noshadow
    >>> x = [[0.0], [1.0], [2.0], [3.0]]
    >>> layer = noshadow.LastLayer(x, [0.0, 1.0, 2.0, 3.0], [0.1, 0.9, 1.9, 3.1], head="squared")
    >>> sorted(noshadow.audit(layer).top(2)["id"])
    [0, 3]
    """

    table: pd.DataFrame
    metadata: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def ranking(self) -> str:
        """The column that ``top`` ranks by."""
        return str(self.metadata["ranked_by"])

    def top(self, share: float | int = 0.01) -> pd.DataFrame:
        """The most exposed records, most exposed first.

        Parameters
        ----------
        share : float or int
            A share (0.01: one in a hundred, at least one) or a count.

        Returns
        -------
        pandas.DataFrame
            Rows of ``table``, flagged records first.
        """
        n = len(self.table)
        if isinstance(share, (bool, np.bool_)) or not 0 < share <= max(n, 1):
            raise InputError(f"top: expected a share between 0 and 1 or a number of records, got {share!r}")
        count = int(share) if isinstance(share, (int, np.integer)) else max(1, round(share * n)) if share <= 1 else 0
        if count == 0:
            raise InputError(f"top: {share!r} is neither a share (at most 1.0) nor a whole number of records")
        order = self.table.sort_values(["flagged", self.ranking], ascending=False, kind="stable")
        return order.head(count)

    def save(self, path: str | Path) -> Path:
        """Write the table: .parquet with the metadata in its schema, or .csv with them beside it in .csv.json.

        Parameters
        ----------
        path : str or Path
            A file that ends in .parquet or .csv. It is written whole or not at all, for its owner alone.

        Returns
        -------
        Path
            The file.
        """
        return save_table(self.table, {**self.metadata, "notes": list(self.notes), "schema": SCHEMA}, path)

    @classmethod
    def load(cls, path: str | Path) -> Audit:
        """An audit that was saved: the same table, metadata and notes.

        Parameters
        ----------
        path : str or Path
            What ``save`` wrote; a .csv with its .csv.json beside it.

        Returns
        -------
        Audit

        Raises
        ------
        InputError
            A file of something else, of another version of the format, damaged or altered.

        Examples
        --------
        >>> import noshadow, tempfile
        >>> layer = noshadow.LastLayer([[0.0], [1.0], [2.0]], [0.1, 1.0, 1.9], [0.0, 1.2, 1.8], head="squared")
        >>> path = noshadow.audit(layer, ids=["a", "b", "c"]).save(f"{tempfile.mkdtemp()}/audit.parquet")
        >>> noshadow.Audit.load(path)
        Audit(3 records, squared head, ranked by 'exposure')
        """
        table, facts = load_table(path)
        schema, notes = facts.pop("schema", None), facts.pop("notes", None)
        if schema is None or not isinstance(notes, list) or any(name not in facts for name in _NEEDED):
            raise FileError(f"path: {path} is a table of noshadow, but not of an audit")
        if schema != SCHEMA:
            raise FileError(f"path: {path} is an audit in format {schema}, this version reads {SCHEMA}; audit again")
        return cls(table, facts, tuple(notes))

    def summary(self) -> dict[str, float]:
        """The audit as a whole in flat numbers, for MLflow, Weights & Biases and the like; nothing names a record.

        Returns
        -------
        dict of float
            What is not known of this audit is left out: without predicted rates there are no bands, say.
        """
        facts = self.metadata
        found: dict[str, Any] = {name: facts.get(name) for name in ("records", "features", "outputs", "flagged")}
        found |= {name: facts.get(name) for name in ("ridge", "rank", "stationarity", "linearity")}
        score = self.table[self.ranking]
        found |= {f"{self.ranking}_{name}": value for name, value in _spread_of(score).items()}
        if "attack_accuracy" in self.table:
            rates = self.table["attack_accuracy"]
            found |= {f"attack_accuracy_{name}": value for name, value in _spread_of(rates).items()}
            counts = band_counts(rates, self.table["flagged"])
            found |= {f"records_{band.replace(' ', '_')}": count for band, count in counts.items()}
        return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _render().audit_table(self)

    def report(
        self,
        path: str | Path,
        *,
        policy: Policy | str | Path | None = None,
        show: Callable[[Any], Any] | str | None = None,
        public: bool = False,
        title: str | None = None,
        verified: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a report for a privacy officer to sign and an engineer to act on: one HTML file, complete in itself.

        Parameters
        ----------
        path : str or Path
            A file that ends in .html; in public also .md, a section for a model card. It is written whole or not at
            all, for its owner alone: it says who was in the training data. A public one is for everybody.
        policy : Policy, str or Path, optional
            What the audit is held against: a ``noshadow.gate.Policy``, or a TOML file with ``fail_above`` and
            ``max_records``.
        show : function or str, optional
            What to show of the most exposed records: a function of a record's id that gives a text or an image (an
            array (h, w), (h, w, 3) or (3, h, w)), or the name of a column of ``table``.
        public : bool
            Aggregates only: no record is named, small counts are withheld.
        title : str, optional
            What the model is called.
        verified : mapping, optional
            What an attack with shadow models said of this model: ``attack``, its name; ``models``, how many;
            ``recall``, what ``noshadow.evaluate.recall`` gives; ``ceiling``, what ``noshadow.evaluate.ceiling`` gives;
            ``top`` and ``keep`` where they are not 0.01 and 0.05. None: the report says that nothing was verified.

        Returns
        -------
        Path
            The file, half a megabyte at most for any number of records.

        Raises
        ------
        InputError
            A policy for an audit without predicted rates, a column that is not there, a path that cannot be written.

        Examples
        --------
        >>> import noshadow, tempfile
        >>> x = [[0.0], [1.0], [2.0], [3.0]]
        >>> layer = noshadow.LastLayer(x, [0.0, 1.0, 2.0, 3.0], [0.1, 0.9, 1.9, 3.1], head="squared")
        >>> path = noshadow.audit(layer).report(f"{tempfile.mkdtemp()}/audit.html", title="Four points")
        >>> "Four points" in path.read_text(encoding="utf-8")
        True
        """
        from noshadow.gate import Policy
        from noshadow.report import write_report

        rule = policy if policy is None or isinstance(policy, Policy) else Policy.read(policy)
        verdict = None if rule is None else rule.judge(self)
        return write_report(self, path, verdict=verdict, show=show, public=public, title=title, verified=verified)

    def _repr_html_(self) -> str:
        """Notebooks: the finding, the bands and the most exposed records."""
        from noshadow.report import in_notebook

        return in_notebook(self)

    def __repr__(self) -> str:
        facts = self.metadata
        return f"Audit({facts['records']} records, {facts['head']} head, ranked by {self.ranking!r})"


def _render() -> Any:
    """What people see is made where the commands are, above this module, and only when something is shown."""
    return importlib.import_module("noshadow.commands.render")


def _spread_of(values: pd.Series[Any]) -> dict[str, float]:
    """Mean, median, 99 % quantile and maximum of a column; nothing where it is empty.

    A value without bound counts: the maximum of the others would be that of no record to worry about.
    """
    known = values.to_numpy(dtype=np.float64)
    known = known[~np.isnan(known)]
    if not len(known):
        return {}
    with np.errstate(invalid="ignore"):  # between infinite ones
        median, high = np.quantile(known, (0.5, 0.99))
    return {"mean": known.mean(), "median": median, "p99": high, "max": known.max()}


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
        Share of the records, the highest ones, that an approximation is to score exactly.
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
        ``noshadow.score``), with the exact Hessian.

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
    objective = Objective(
        head, loss, ridge, weight_decay, sample_weight, class_weight, label_smoothing, optimizer=optimizer
    )
    choices: dict[str, Any] = {"layer": layer, "output": output, "batch_size": batch_size}
    choices |= {"fits": lambda size: choose(curvature, size, memory), "progress": progress}
    choices |= {"cache_dtype": cache_dtype}
    with _gathered() as warned:
        found = extract(model, data, objective, **choices, cache=cache)
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
            return extract(other, records, Objective(found.layer.head), **how).layer

    spreads, others = compare_runs(model, data, found.layer, rerun, held_out, read)
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
    all_notes = (*found.notes, *warned, *found.layer.notes, *told, *concerns(found.layer, diagnostics))
    notes, said = tuple(dict.fromkeys(all_notes)), _said(model)
    for note in notes:
        if note not in said:
            warnings.warn(note, NoshadowWarning, stacklevel=2)
    flagged = np.zeros(found.layer.n, dtype=bool)
    flagged[list(diagnostics.flagged)] = True
    table = pd.concat([pd.DataFrame(about), frame], axis=1).assign(flagged=flagged)
    ranking = next((name for name in _PREFERENCE if name in frame), str(frame.columns[0]))
    metadata = _metadata(found, diagnostics, ranking, full_step)
    metadata |= {"trace": _remembered(trace), "calibration": _calibration(diagnostics)}
    metadata |= {"class_names": called, "provenance": provenance_of(model, found.layer)}
    metadata["advice"] = _advice(metadata, found.layer, features_of(model, found) == "fixed")
    return Audit(table, metadata, notes)


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


def _part(own: bool, members: bool) -> str:
    """The folder within a cache of one more forward pass."""
    return f"{'model' if own else 'rerun'}-{'members' if members else 'held-out'}"


def _said(model: Any) -> tuple[str, ...]:
    """The notes that were given when the layer was made; those of a file were given to somebody else."""
    if not isinstance(model, LastLayer):
        return ()
    read = model.origin is None or model.origin.file is not None
    return model.notes if read else (*model.notes, *(model.origin.notes if model.origin else ()))


def _remembered(trace: Any) -> str:
    """What the trace held: mean outputs, losses alone, or nothing."""
    if trace is None:
        return "none"
    return "mean outputs" if getattr(trace, "mean_outputs", None) is not None else "losses"


def _calibration(diagnostics: Diagnostics) -> dict[str, Any] | None:
    return None if diagnostics.calibration is None else asdict(diagnostics.calibration)


def _advice(facts: dict[str, Any], layer: LastLayer, untrained: bool) -> list[str]:
    """What would make the answer sharper, and how to get it."""
    hints = []
    linear = facts["linearity"] is not None and facts.get("stationarity") is not None and facts["stationarity"] < 0.1
    if untrained and facts["calibration"] is None and facts.get("stationarity") is not None and not linear:
        return [
            "the fit stopped short of its optimum, so that its own law says nothing of success rates; fit it with a "
            "smaller tol= and more iterations, or pass held_out= and rerun="
        ]
    if facts["trace"] != "mean outputs" and not linear:
        hints.append(
            "ranked from the final model alone; a network that has memorised a record hides it. Record a "
            "noshadow.Trace while training, or make one of a few checkpoints (Trace.from_checkpoints) or of one more "
            "run of the same recipe, and pass it as trace="
        )
    if layer.kind.signals and facts["calibration"] is None:
        hints.append(
            "for a predicted success rate per record pass held_out=, records that the model was not trained on, and "
            "rerun=, a second model trained with another seed"
        )
    elif facts["calibration"] is not None and facts["calibration"]["source"] == "converged" and not untrained:
        hints.append(
            "the predicted rates are those of a last layer on features that were not trained on these records; if they "
            "were, pass held_out= and rerun="
        )
    elif facts["calibration"] is not None and facts["calibration"]["source"] == "gap":
        hints.append(
            "the predicted rates are not calibrated: pass rerun=, a second model trained with another seed, for how "
            "far an attack's statistic moves from run to run"
        )
    return hints


def _metadata(found: Extracted, diagnostics: Diagnostics, ranking: str, full_step: bool) -> dict[str, Any]:
    layer = found.layer
    return {
        "noshadow": __version__,
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": found.source,
        **found.facts,
        "head": layer.head,
        "records": layer.n,
        "features": layer.n_features,
        "outputs": layer.n_outputs,
        "bias": layer.bias,
        "ridge": layer.ridge,
        "penalize_bias": layer.penalize_bias,
        "sample_weight": layer.source.weighted,
        "class_weight": None if layer.class_weight is None else layer.class_weight.tolist(),
        "label_smoothing": layer.label_smoothing,
        "curvature": diagnostics.curvature,
        "curvature_chosen": diagnostics.chosen,
        "curvature_exact": diagnostics.exact,
        "accuracy": None if diagnostics.accuracy is None else diagnostics.accuracy.facts(),
        "rank": diagnostics.rank,
        "stationarity": diagnostics.stationarity,
        "best_ridge": diagnostics.best_ridge,
        "linearity": diagnostics.linearity,
        "flagged": len(diagnostics.flagged),
        "full_step": full_step,
        "ranked_by": ranking,
    }
