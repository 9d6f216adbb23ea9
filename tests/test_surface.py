"""The public surface: every documented name is there, and importing it loads no library that it does without."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

HEAVY = {
    *("jinja2", "joblib", "matplotlib", "numpy", "pandas", "pyarrow", "ray", "rich"),
    *("safetensors", "scipy", "sklearn", "torch", "transformers", "typer"),
}
ARRAYS = {"numpy"}
TENSORS = ARRAYS | {"torch"}
TABLES = TENSORS | {"pandas", "pyarrow", "safetensors", "scipy"}
STORES = ARRAYS | {"joblib", "safetensors"}

# what each part may load beside the standard library, and its documented names
SURFACE = {
    "noshadow": (set(), "InputError NoshadowWarning __version__"),
    "noshadow.layer": (TENSORS, "LastLayer"),
    "noshadow.sources": (TENSORS, "Arrays OtherOutputs Source Streamed check_rows find_table"),
    "noshadow.passes": (TENSORS, "Additive Blocks Sums in_blocks on_ray require_engine summed"),
    "noshadow.trace": (TENSORS | {"safetensors"}, "Trace"),
    "noshadow.predict": (TENSORS | {"scipy"}, "spread"),
    "noshadow.scoring": (TABLES, "score"),
    "noshadow.canary": (TABLES, "Canaries canaries"),
    "noshadow.audit": (TABLES, "Audit audit"),
    "noshadow.findings": ({"numpy", "pandas", "pyarrow"}, "Audit"),
    "noshadow.bundle": (TABLES, "Bundle"),
    "noshadow.reading": (TENSORS | {"safetensors"}, "last_layer"),
    "noshadow.bands": (ARRAYS, "BANDS Band band_counts"),
    "noshadow.gate": (ARRAYS, "Policy Verdict"),
    "noshadow.report": (
        {"jinja2", "numpy", "pandas", "pyarrow"},
        "Comparison compare html_of in_notebook write_comparison write_report",
    ),
    "noshadow.attacks": (
        TENSORS | {"scipy"},
        "AttackResult Posterior RocCurve auc epsilon_lower_bound lira lira_variance rmia roc shokri signal threshold "
        "tpr_at_fpr with_prior",
    ),
    "noshadow.evaluate": (
        ARRAYS | {"scipy"},
        "Budget budget Comparison Measured Metric Prediction Summary ceiling halves ndcg oracle oracle_ceiling "
        "ordering over_predictions over_targets paired_bootstrap paired_difference precision_at_k recall spearman "
        "best_scores deviations_apart is_ahead noiseless_correlation share_size Reliability reliability",
    ),
    "noshadow.theory": (
        ARRAYS | {"scipy"},
        "LeverageLaw Losses Sample auc epsilon_lower_bound expected_gap from_sample gap_expansion influence_ratio "
        "leverage_law loss_cdf loss_quantile newton_ratio population_leverage sample_losses success_rate tpr_at_fpr "
        "tradeoff",
    ),
    "noshadow.shadow": (STORES, "ModelKey Plan StoreError Study StudyError StudyResult load"),
    "noshadow.shadow.train": (TENSORS | {"safetensors"}, "TorchTrainer"),
    "noshadow.shadow.recipe": (TENSORS, "Recipe"),
    "noshadow.shadow.recording": (TENSORS, "Recording"),
    "noshadow.network": (TENSORS, "NetworkInfluence network_influence"),
    "noshadow.shadow.worker": (ARRAYS, "main"),
    "noshadow.progress": (set(), "progress_bar"),
    "noshadow.cli": ({"typer", "rich"}, "app main"),
}
# names that a package hands on only when they are asked for
LAZY = {
    "noshadow": [
        *("Audit", "Bundle", "Canaries", "LastLayer", "Trace", "attacks", "audit", "canaries", "evaluate"),
        *("last_layer", "network", "score", "shadow", "spread", "theory"),
    ],
    "noshadow.shadow": ["Recipe", "Recording", "TorchTrainer"],
}


def loaded_by(code: str) -> set[str]:
    """The heavy libraries that a fresh process has loaded after some code."""
    code = f"{code}\nimport sys, json\nprint(json.dumps(sorted(name.split('.')[0] for name in sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return HEAVY & set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", SURFACE)
def test_documented_names_load_what_they_may_and_no_more(module):
    may, names = SURFACE[module]
    imports = "\n".join(f"from {module} import {name}" for name in names.split())
    assert loaded_by(imports) <= may


def test_the_surface_is_complete():
    """All names that the packages hand on are in the table."""
    for module in ("noshadow", "noshadow.attacks", "noshadow.evaluate", "noshadow.theory", "noshadow.shadow"):
        listed = set(SURFACE[module][1].split()) | set(LAZY.get(module, ()))
        assert set(importlib.import_module(module).__all__) == listed


@pytest.mark.parametrize("module", LAZY)
def test_lazy_names_are_those_of_their_homes(module):
    package = importlib.import_module(module)
    assert set(package.__all__) <= set(dir(package))
    for name in LAZY[module]:
        value = getattr(package, name)
        assert getattr(value, "__name__", None) in (name, f"{module}.{name}")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize(
    "command", ["", "demo", "audit", "score", "report", "attack", "bench", "theory", "theory figure"]
)
def test_help_needs_no_numbers(command):
    code = f"import sys\nsys.argv = 'noshadow {command} --help'.split()\nfrom noshadow.cli import main\n"
    assert loaded_by(f"{code}try:\n    main()\nexcept SystemExit as end:\n    assert not end.code") <= {"typer", "rich"}


def test_a_worker_that_trains_without_torch_never_loads_it():
    code = """
from noshadow.shadow.plan import ModelKey
from noshadow.shadow.work import Task, perform
import numpy as np
task = Task((ModelKey("shadow", 0),), (np.arange(2),), (0,), 4)
(result,) = perform(lambda members, seed: np.zeros(4), task, 1).results
assert result["outputs"].shape == (4, 1)
"""
    assert loaded_by(code) == {"numpy"}
