"""The gate: a policy on predicted rates, and whether an audit is within it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import typer
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from noshadow import Audit, InputError, LastLayer, audit
from noshadow.commands.rules import read_policy, takes_policy
from noshadow.gate import Policy, policy_key, rate


def with_rates(rates, flagged=None, source="rerun"):
    flagged = [False] * len(rates) if flagged is None else flagged
    table = pd.DataFrame({"id": np.arange(len(rates)), "attack_accuracy": rates, "flagged": flagged})
    return Audit(table, {"calibration": {"source": source}})


def test_records_above_the_rate_or_flagged_are_counted():
    held = with_rates([0.5, 0.9, 0.91, 0.95, 0.6], [False, False, False, True, True])
    for policy, over, met in (
        (Policy(), 3, False),
        (Policy(max_records=3), 3, True),
        (Policy(0.95, 2), 2, True),
        (Policy(0.95, 1), 2, False),
        (Policy(0.5, 4), 4, True),
    ):
        verdict = policy.judge(held)
        assert (verdict.met, verdict.over, verdict.policy) == (met, over, policy)
        assert verdict.sentence.endswith(": met." if met else ": not met.")
        assert f"{over} of 5 records have" in verdict.sentence
        assert f"above {policy.fail_above:g}" in verdict.sentence


def test_an_audit_without_rates_is_never_within_a_policy():
    x = np.random.default_rng(0).normal(size=(30, 2))
    rough = audit(LastLayer(x, 3 * x, np.arange(30) % 2))
    assert "attack_accuracy" not in rough.table
    with pytest.raises(InputError, match=r"policy: .*no predicted rates.*held_out=.*rerun="):
        Policy(1.0, 10**9).judge(rough)


def test_records_without_a_rate_decide_only_where_they_cannot():
    held = with_rates([0.5, np.nan, 0.95, np.nan])
    with pytest.raises(InputError, match="2 of 4 records have no predicted rate"):
        Policy(0.9, 1).judge(held)
    assert not Policy(0.9, 0).judge(held).met  # over it, whatever they are
    assert Policy(0.9, 3).judge(held).met


def test_rates_that_nothing_calibrated_are_called_so():
    assert Policy().judge(with_rates([0.5], source="gap")).sentence.endswith("met, by rates that no rerun calibrated.")


def test_a_converged_model_can_be_judged():
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    held = audit(LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(x, y), (x, y))
    rates = held.table["attack_accuracy"]
    assert Policy(0.75).judge(held).over == int((rates > 0.75).sum())


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"fail_above": 0.4}, "fail_above"),
        ({"fail_above": 1.1}, "fail_above"),
        ({"fail_above": float("nan")}, "fail_above"),
        ({"fail_above": True}, "fail_above"),
        ({"fail_above": "0.9"}, "fail_above"),
        ({"max_records": -1}, "max_records"),
        ({"max_records": 1.5}, "max_records"),
        ({"max_records": True}, "max_records"),
    ],
)
def test_what_is_no_policy_is_refused(given, argument):
    with pytest.raises(InputError, match=f"{argument}: expected"):
        Policy(**given)


def test_policies_in_files(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text("fail_above = 0.75\nmax_records = 3\n")
    assert Policy.read(file) == Policy(0.75, 3)
    file.write_text("# nothing\n")
    assert Policy.read(file) == Policy()
    for content, message in {
        b"fail_over = 0.9\n": r"has 'fail_over', which is not known; it may have fail_above, max_records",
        b"fail_above = \n": "is no TOML file",
        b"\xff\xfe": "is no TOML file",
        b"fail_above = 3\n": "fail_above: expected a success rate",
        b"fail_above = '0.9'\n": "fail_above: expected a success rate",
        b"x = 1 #" + b" " * 2**20: "too large",
    }.items():
        file.write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            Policy.read(file)
        assert str(caught.value).startswith("policy: ")
    with pytest.raises(InputError, match=r"policy: .*none.toml cannot be read"):
        Policy.read(tmp_path / "none.toml")


def test_the_sentence_gives_the_rate_as_it_is():
    assert "above 0.99999999 or" in Policy(0.99999999).judge(with_rates([0.5])).sentence
    assert "above 1 or" in Policy(1.0).judge(with_rates([1.0])).sentence
    assert Policy(1.0).judge(with_rates([1.0])).met


def test_a_key_is_one_line(monkeypatch, tmp_path):
    """A field of ``Policy``: files, verdicts, options and JSON follow."""

    @dataclass(frozen=True)
    class Wider(Policy):
        max_share: float = policy_key(1.0, rate, "The share of records above it.", lambda most, n: int(most * n))

    monkeypatch.setattr("noshadow.gate.Policy", Wider)
    (tmp_path / "policy.toml").write_text("max_records = 3\nmax_share = 0.5\n")
    held = with_rates([0.95, 0.95, 0.95, 0.6])
    verdict = Wider.read(tmp_path / "policy.toml").judge(held)
    assert (verdict.allowed, verdict.met) == (2, False)
    assert "the policy allows 2: not met" in verdict.sentence
    with pytest.raises(InputError, match=r"^max_share: expected a success rate .* got 'x'"):
        Wider(max_share="x")

    app, seen = typer.Typer(), []

    @app.command()
    @takes_policy
    def judge(policy: str | None = None, *, rules: dict[str, object]) -> None:
        seen.append(read_policy(None, **rules))

    result = CliRunner().invoke(app, ["--max-share", "0.75", "--max-records", "7"])
    assert result.exit_code == 0, result.output
    assert seen == [Wider(max_records=7, max_share=0.75)]
    assert "The share of records above it. Default: 1.0." in " ".join(
        CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output.split()
    )
