"""Audit: what an audit found, a row per record, and what people and machines take from it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from noshadow.bands import band_counts
from noshadow.errors import FileError, InputError
from noshadow.tables import load_table, save_table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from noshadow.gate import Policy

__all__ = ["SCHEMA", "Audit"]

SCHEMA = 1
"""Of saved audits; raised when the same names mean something else."""
_NEEDED = ("records", "head", "features", "outputs", "ranked_by", "provenance")


@dataclass(frozen=True, eq=False)
class Audit:
    """Every training record with its scores, and what is known of the model.

    Attributes
    ----------
    table : pandas.DataFrame
        A row per record: ``id``, ``target``, ``nearest_class`` (of classes: the likeliest one other than the record's
        own), the groups, a column for each score, ``flagged`` (the fit without it is undefined).
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

        Examples
        --------
        >>> import noshadow
        >>> x = [[0.0], [1.0], [2.0], [3.0], [10.0]]
        >>> layer = noshadow.LastLayer(x, [0.0, 1.0, 2.0, 3.0, 10.0], [0.2, 0.9, 1.9, 3.1, 9.9], head="squared")
        >>> audit = noshadow.audit(layer, ids=["ann", "bob", "eve", "joe", "sue"])
        >>> audit.ranking
        'exposure'
        >>> audit.top(2)["id"].tolist()
        ['sue', 'ann']
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

        Examples
        --------
        >>> import noshadow, os, tempfile
        >>> layer = noshadow.LastLayer([[0.0], [1.0], [2.0]], [0.1, 1.0, 1.9], [0.0, 1.2, 1.8], head="squared")
        >>> path = noshadow.audit(layer).save(f"{tempfile.mkdtemp()}/audit.csv")
        >>> sorted(os.listdir(path.parent))
        ['audit.csv', 'audit.csv.json']
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
        >>> noshadow.Audit.load(path).top(1)["id"].tolist()
        ['a']
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

        Examples
        --------
        >>> import noshadow
        >>> x = [[0.0], [1.0], [2.0], [3.0], [10.0]]
        >>> layer = noshadow.LastLayer(x, [0.0, 1.0, 2.0, 3.0, 10.0], [0.2, 0.9, 1.9, 3.1, 9.9], head="squared")
        >>> summary = noshadow.audit(layer).summary()
        >>> summary["records"], round(summary["exposure_max"], 3)
        (5.0, 0.294)
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
        lines = [f"Audit({facts['records']} records, {facts['head']} head, ranked by {self.ranking!r})"]
        return "\n".join([*lines, *(f"  hint: {hint}" for hint in facts.get("advice", ()))])


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
