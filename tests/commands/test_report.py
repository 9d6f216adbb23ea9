"""``noshadow report`` as a shell sees it: what is written, what is said, how it ends."""

from __future__ import annotations

import json
import stat

import pytest
from typer.testing import CliRunner

from noshadow.cli import app
from tests.report.made import made_audit


def run(*arguments):
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return made_audit().save(tmp_path / "audit.parquet")


def test_a_report_is_written_beside_the_audit(saved, tmp_path):
    result = run("audit.parquet")
    assert (result.exit_code, result.stdout) == (0, "wrote audit.html\n")
    text = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert "record" in text
    assert "noshadow.Audit.load(&#39;audit.parquet&#39;)" in text
    assert stat.S_IMODE((tmp_path / "audit.html").stat().st_mode) == 0o600
    assert run("audit.parquet", "--public").stdout == "wrote audit-public.html\n"
    assert run("audit.parquet", "--markdown").stdout == "wrote audit.md\n"
    assert (tmp_path / "audit.md").read_text(encoding="utf-8").startswith("## Membership inference risk")
    run("audit.parquet", "-o", "b.html", "--show", "id", "--title", "A title of its own")
    assert "A title of its own" in (tmp_path / "b.html").read_text(encoding="utf-8")


def test_exit_codes_of_policies(saved, tmp_path):
    over = run("audit.parquet", "--fail-above", "0.9")
    assert over.exit_code == 1
    assert "not met" in over.stdout
    assert (tmp_path / "audit.html").exists()
    within = run("audit.parquet", "--fail-above", "0.9", "--max-records", "600", "--json")
    assert within.exit_code == 0
    assert json.loads(within.stdout)["met"] is True
    (tmp_path / "policy.toml").write_text("fail_above = 0.9\nmax_records = 0\n", encoding="utf-8")
    assert run("audit.parquet", "--policy", "policy.toml").exit_code == 1
    public = run("audit.parquet", "--policy", "policy.toml", "--public", "--json")
    assert public.exit_code == 1
    assert set(json.loads(public.stdout)) == {"report", "public", "met", "notes"}
    made_audit(rates=False).save(tmp_path / "unrated.parquet")
    unrated = run("unrated.parquet", "--fail-above", "0.9")
    assert unrated.exit_code == 3
    assert "audit again with --held-out" in " ".join(unrated.stderr.split())
    assert "no predicted rates" in unrated.stderr
    assert not (tmp_path / "unrated.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "AUDIT: missing"),
        (("nothing.parquet",), 2, "does not exist"),
        (("audit.parquet", "-o", "a.pdf"), 2, "--output: 'a.pdf' must end in .html"),
        (("audit.parquet", "-o", "no/a.html"), 2, "does not exist"),
        (("audit.parquet", "--markdown", "-o", "a.html"), 2, "must end in .md"),
        (("audit.parquet", "--public", "--show", "id"), 2, "--show: a public report shows no records"),
        (("audit.parquet", "--show", "face"), 2, "--show: the audit has no column 'face'"),
        (("audit.parquet", "--fail-above", "1.5"), 2, "--fail-above: expected a success rate"),
        (("audit.parquet", "--policy", "bad.toml"), 3, "bad.toml"),
        (
            ("audit.parquet", "--policy", "good.toml", "--max-records", "3"),
            2,
            "--policy, --max-records: give one",
        ),
        (("damaged.parquet",), 3, "AUDIT: damaged.parquet"),
        (("audit.txt",), 2, "AUDIT: 'audit.txt' must end in .parquet or .csv"),
        (("audit.parquet", "--compare", "audit.parquet", "audit.parquet"), 2, "--compare: compares two audits"),
        (("--compare", "audit.parquet", "other.parquet"), 2, "--compare: no record is in both audits"),
        (("--compare", "audit.parquet", "damaged.parquet"), 3, "--compare: damaged.parquet"),
        (("--compare", "audit.parquet", "audit.parquet", "--public"), 2, "takes no --public"),
        (("--compare", "audit.parquet", "audit.parquet", "--max-records", "0"), 2, "takes no --max-records"),
        (("layer.safetensors",), 3, "AUDIT: layer.safetensors is no audit; noshadow audit layer.safetensors"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(saved, tmp_path, arguments, code, said):
    content = saved.read_bytes()
    (tmp_path / "damaged.parquet").write_bytes(content[: len(content) // 2])
    (tmp_path / "layer.safetensors").write_bytes(b"a layer")
    (tmp_path / "audit.txt").write_text("text", encoding="utf-8")
    (tmp_path / "bad.toml").write_text("fail_abov = 1", encoding="utf-8")
    (tmp_path / "good.toml").write_text("fail_above = 0.9", encoding="utf-8")
    other = made_audit()
    other.table["id"] = [f"other {i}" for i in range(600)]
    other.save(tmp_path / "other.parquet")
    result = run(*arguments)
    assert result.exit_code == code, result.stderr
    assert said in " ".join(result.stderr.split())
    assert not list(tmp_path.glob("*.html"))


def test_two_audits_side_by_side(saved, tmp_path):
    after = made_audit()
    after.table["attack_accuracy"] = 0.5 + 0.5 * (after.table["attack_accuracy"] - 0.5)
    after.save(tmp_path / "after.parquet")
    result = run("--compare", "audit.parquet", "after.parquet")
    assert result.exit_code == 0, result.stderr
    assert "Fewer records are exposed" in result.stdout
    assert result.stdout.endswith("wrote compare.html\n")
    assert stat.S_IMODE((tmp_path / "compare.html").stat().st_mode) == 0o600
    found = json.loads(run("--compare", "audit.parquet", "after.parquet", "-o", "c.html", "--json").stdout)
    assert found["matched"] == 600
    assert found["exposed"]["after"] < found["exposed"]["before"]
    assert sum(map(sum, found["moves"])) == 600
