"""Where workers import from: what their study was imported from, and not a folder that happens to be current."""

from __future__ import annotations

import subprocess
import sys

import pytest

from noshadow.import_paths import worker_path

PLANTED = "import os\nopen(os.environ['MARK'], 'a').write('planted')\nraise ImportError('this is a planted module')\n"
STUDY = """
from noshadow import shadow
{imports}
shadow.Study({train}, 8, n_models=2, store={store!r}, procedure="toy").run("processes", workers=1)
"""
TRAIN = "def train(members, seed):\n    import random, secrets\n    return [float(seed)] * 8\n"


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A folder with modules that bear the names of Python's own."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    for name in ("random", "queue", "pickle", "secrets", "threadpoolctl"):
        (folder / f"{name}.py").write_text(PLANTED)
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    return folder


def run(*arguments, cwd, code=0):
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_workers_of_a_command_run_nothing_of_the_current_folder(tmp_path, foreign):
    """As the command ``noshadow`` is started: by a script elsewhere, with the foreign folder current."""
    script = tmp_path / "bin" / "command"
    script.parent.mkdir()
    script.write_text(TRAIN + STUDY.format(imports="", train="train", store=str(tmp_path / "store")))
    run(script, cwd=foreign)
    assert not (tmp_path / "mark").exists()
    assert len(list((tmp_path / "store" / "shadow").glob("*.safetensors"))) == 2


def test_nor_in_an_interactive_session_that_used_nothing_from_there(tmp_path, foreign):
    """``python -c`` has the current folder first on its path; here it is taken off before anything is imported."""
    code = "import sys\nsys.path.remove('')\n" + TRAIN + "from noshadow.shadow import Study\nsys.path.insert(0, '')\n"
    code += STUDY.format(imports="", train="train", store=str(tmp_path / "store"))
    run("-c", code, cwd=foreign)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("how", ["script", "session", "package"])
def test_what_was_imported_from_the_current_folder_can_be_imported_there(tmp_path, how):
    home = tmp_path / "home"
    (home / "parts").mkdir(parents=True)
    for place in (home / "mine.py", home / "parts" / "__init__.py"):
        place.write_text(
            "def helper(seed):\n    return [float(seed)] * 8\ndef train(members, seed):\n    return helper(seed)\n"
        )
    module = "parts" if how == "package" else "mine"
    study = STUDY.format(imports=f"import {module}", train=f"{module}.train", store=str(tmp_path / "store"))
    (home / "script.py").write_text(study)
    run(*(["script.py"] if how == "script" else ["-c", study]), cwd=home)
    assert len(list((tmp_path / "store" / "shadow").glob("*.safetensors"))) == 2


def test_a_scripts_own_folder_stays_first(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "script.py").write_text(
        "import sys\nfrom noshadow.import_paths import worker_path\nprint(worker_path() == [p for p in sys.path])\n"
    )
    assert run("script.py", cwd=home).stdout == "True\n"  # as the script itself: its modules come first
    assert run(home / "script.py", cwd=tmp_path).stdout == "True\n"


def test_the_path_has_no_empty_entry(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    assert "" not in worker_path()
    assert str(tmp_path) not in worker_path()
