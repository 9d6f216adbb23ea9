"""Fingerprints: another one after any change of what is trained, the same one in any process, else refused."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from noshadow.errors import InputError
from noshadow.import_paths import import_path
from noshadow.shadow import Recipe, Study, TorchTrainer
from noshadow.shadow.content import Content
from noshadow.shadow.fingerprint import describe_procedure, describe_value

SCRIPT = Path(__file__).with_name("fingerprint_script.py")
CHANGES = {
    "estimator": ("closure", "C=1.0", "C=2.0"),
    "fitted estimator": ("closure", ".fit(X)", ".fit(X + 1)"),
    "dataclass": ("closure", "Settings(rate=0.1)", "Settings(rate=0.2)"),
    "namespace": ("closure", "depth=2", "depth=3"),
    "sparse matrix": ("closure", "np.eye(4)", "2 * np.eye(4)"),
    "TensorDataset": ("closure", "torch.as_tensor(Y)", "torch.as_tensor(1 - Y)"),
    "set": ("closure", '"d"', '"e"'),
    "plain object": ("closure", "1.0", "2.0"),
    "slots": ("closure", "3", "4"),
    "data frame": ("closure", '"b"', '"c"'),
    "generators": ("closure", "random.Random(5)", "random.Random(6)"),
    "global in a lambda": ("closure", "1.0", "1.5"),
    "global in a comprehension": ("closure", "3.0", "3.5"),
    "array in the closure": ("closure", "6.0", "7.0"),
    "method": ("closure", "* x", "* x * x"),
    "one of two functions that call each other": ("closure", "+ 1", "+ 2"),
    "behind a cache": ("closure", "+ 1", "+ 2"),
    "behind a decorator": ("closure", "+ 0.0", "+ 1.0"),
    "__call__": ("callable", "2.0", "3.0"),
    "forward": ("trainer", "self.inner(x)", "self.inner(-x)"),
    "attribute of the network": ("trainer", "1.0", "2.0"),
    "callable augment": ("trainer", "0.1", "0.2"),
    "callable loss": ("trainer", "* self", "/ self"),
    "state of a callable loss": ("trainer", "1.0", "2.0"),
    "optimizer": ("trainer", "lr=0.1", "lr=0.2"),
    "pretrained module": ("trainer", "0.5", "0.6"),
}


def fingerprint(path: Path, procedure: str):
    return describe_procedure(runpy.run_path(str(path))["PROCEDURES"][procedure]())


@pytest.fixture(scope="module")
def unchanged():
    return {name: fingerprint(SCRIPT, name) for name in ("closure", "partial", "callable", "trainer")}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(tmp_path, unchanged, change):
    procedure, before, after = CHANGES[change]
    lines = SCRIPT.read_text().splitlines()
    (number,) = (place for place, line in enumerate(lines) if line.endswith(f"# change: {change}"))
    lines[number] = lines[number].replace(before, after, 1)
    path = tmp_path / "changed.py"
    path.write_text("\n".join(lines))
    assert lines[number] not in SCRIPT.read_text()
    assert fingerprint(path, procedure) != unchanged[procedure]


def test_other_wording_is_the_same_procedure(tmp_path, unchanged):
    """Comments, docstrings and line numbers; the order of methods and of unrelated lines."""
    text = SCRIPT.read_text().replace("Words about it.", "Other words.").replace("  # change:", "    # was:")
    path = tmp_path / "reworded.py"
    path.write_text("\n\n" + text.replace("\n\n\nclass ", "\n\n\n# between\n\n\nclass "))
    for name, expected in unchanged.items():
        assert fingerprint(path, name) == expected


def test_the_same_in_another_process(tmp_path, unchanged):
    """As a script in another folder, with another hash seed: sets of strings come in another order."""
    script = tmp_path / "train_it.py"
    script.write_text(SCRIPT.read_text())
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": import_path()}
    command = [sys.executable, str(script), *unchanged]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == json.loads(json.dumps(unchanged))


def test_using_things_changes_nothing(unchanged):
    """A sparse matrix notes that it is sorted, a frame caches its index, a cached property is computed."""
    module = runpy.run_path(str(SCRIPT))
    sparse, frame = module["sparse"], module["frame"]
    assert sparse.has_sorted_indices
    assert frame["word"].isna().any()
    assert frame.index.is_unique
    module["cached"](3)
    torch.rand(3)
    assert describe_procedure(module["PROCEDURES"]["closure"]()) == unchanged["closure"]


def test_a_store_is_refused_after_a_change_and_names_it(tmp_path):
    box = {"rate": 0.5}

    def train(members, seed):
        return np.full(6, box["rate"] * seed)

    before = Study(train, 6, 2, store=tmp_path).run("serial").outputs
    box["rate"] = 0.6
    with pytest.raises(InputError, match=r"holds another study.*\n  procedure.uses.box: dict \w+ there, dict \w+ here"):
        Study(train, 6, 2, store=tmp_path).run("serial")
    box["rate"] = 0.5
    np.testing.assert_array_equal(Study(train, 6, 2, store=tmp_path).run("serial").outputs, before)


def test_versions_of_libraries_are_part_of_it(tmp_path, monkeypatch):
    def train(members, seed):
        import sklearn

        return np.zeros(6) + bool(sklearn)

    before = describe_procedure(train)
    assert before["libraries"]["numpy"] == np.__version__
    assert set(before["libraries"]) == {"numpy", "python", "sklearn"}
    Study(train, 6, 2, store=tmp_path).run("serial")
    monkeypatch.setattr("noshadow.shadow.content.library_version", lambda name: "9.9")
    with pytest.raises(InputError, match=rf"procedure.libraries.numpy: {np.__version__} there, 9.9 here"):
        Study(train, 6, 2, store=tmp_path).run("serial")


def test_modules_of_ones_own(tmp_path, monkeypatch):
    """What is used of them, and imports inside of functions, by content; what is not used does not count."""
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def found(helper="1", inside="1", unused="1"):
        for name in [name for name in sys.modules if name.startswith("own_package")]:
            del sys.modules[name]
        (package / "helpers.py").write_text(f"def used():\n    return {helper}\ndef spare():\n    return {unused}\n")
        (package / "inside.py").write_text(f"VALUE = {inside}\n")
        text = "import own_package.helpers\ndef train(members, seed):\n    from own_package import inside\n"
        (package / "main.py").write_text(text + "    return own_package.helpers.used() + inside.VALUE\n")
        return describe_procedure(runpy.run_path(str(package / "main.py"))["train"])

    first = found()
    assert found() == first
    assert found(unused="2") == first
    assert found(helper="2") != first
    assert found(inside="2") != first


LOCK = threading.Lock()


class Holder:
    def __init__(self):
        self.file = open(__file__)  # noqa: SIM115  an open file is what is refused

    def __del__(self):
        self.file.close()


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (LOCK, "thing: a _thread.lock"),
        ((x for x in "ab"), "thing: a generator"),
        ({"here": [Holder()]}, r"thing › here › \[0\] › file: a _io.TextIOWrapper"),
    ],
)
def test_what_has_no_content_is_refused_with_the_remedy(tmp_path, thing, words):
    def train(members, seed):
        return np.zeros(6) + bool(thing)

    with pytest.raises(InputError, match=f'{words} has no content.*procedure="a name of your own"'):
        Study(train, 6, 2, store=tmp_path)
    assert Study(train, 6, 2, store=tmp_path, procedure="with a lock").run("serial").outputs.shape == (2, 6, 1)


def test_deep_and_circular_data():
    first, second = [], []
    first.append(second)
    second.append(first)
    assert Content().digest(first) == Content().digest(second)  # the same circle, entered anywhere
    longer = [[[]]]
    longer[0][0].append(longer)
    assert Content().digest(longer) != Content().digest(first)
    shared = [1.0] * 3
    assert Content().digest([shared, shared]) == Content().digest([[1.0] * 3, list(shared)])
    deep: list = []
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(InputError, match="nested too deeply"):
        describe_value(deep)
    doubled: list = []
    for _ in range(200):
        doubled = [doubled, doubled]  # 2^200 ways through it
    assert describe_value(doubled) == describe_value(doubled)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ("1", 1),
        (0.0, -0.0),
        ([1, 2], (1, 2)),
        ([[1], [2]], [[1, 2]]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.zeros(3), np.zeros((3, 1))),
        (np.zeros(3, np.float32), np.zeros(3)),
        (np.array(["a", None], dtype=object), np.array(["a", "None"], dtype=object)),
        (torch.zeros(3), torch.zeros(3, requires_grad=True)),
        (torch.zeros(3).bfloat16(), torch.zeros(3).half()),
        (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
        (nn.ReLU(), nn.Tanh()),
        (b"a", "a"),
    ],
)
def test_values_that_differ(one, other):
    assert Content().digest(one) != Content().digest(other)
    assert Content().digest(one) == Content().digest(one)


def test_values_that_do_not_differ():
    assert Content().digest({3, "a", (1, 2)}) == Content().digest({(1, 2), "a", 3})
    assert Content().digest(np.zeros((4, 2))[::2]) == Content().digest(np.zeros((2, 2)))
    assert describe_value("a name") == "a name"
    padded = np.zeros(2, dtype=np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"]}, align=True))
    other = padded.copy()
    other.view(np.uint8)[1] = 7  # between the fields
    assert describe_value(other) == describe_value(padded)


X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y = np.arange(12) % 2


def test_random_initial_weights_are_not_part_of_it_but_given_ones_are():
    """Else a study would be tied to the last bits that one kind of processor draws."""

    def found(scale, given=1.0):
        def build():
            net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
            nn.init.normal_(net[0].weight, std=1.0).mul_(1.0 + scale)
            nn.init.constant_(net[1].weight, given)
            return net

        return TorchTrainer(build, (X, Y), Recipe(1, 4)).fingerprint()["network"]

    with torch.no_grad():
        assert found(0.0) == found(1e-6)
        assert found(0.0) != found(0.0, given=1.001)


def test_networks_that_torch_changes_or_guards():
    """A network whose class torch has made out of the user's, one that cannot be sent, one with weak references."""

    def normalised(sign):
        class Signed(nn.Linear):
            def forward(self, x):
                return super().forward(x) if sign > 0 else -super().forward(x)

        return torch.nn.utils.parametrizations.weight_norm(Signed(3, 2))

    with torch.random.fork_rng():
        digests = [torch.manual_seed(0) and Content().digest(normalised(sign)) for sign in (1, 1, -1)]
    assert digests[0] == digests[1] != digests[2]
    assert Content().digest(nn.LSTM(3, 2)) != Content().digest(nn.LSTM(3, 2, batch_first=True))
    with pytest.raises(InputError, match="ScriptModule has no content"):
        Content().digest(torch.jit.script(nn.Linear(3, 2)))


def test_a_factory_that_gives_the_same_module_twice_is_refused(tmp_path):
    shared = nn.Linear(3, 2)
    trainer = TorchTrainer(lambda: nn.Sequential(shared), (X, Y), Recipe(1, 4))
    with pytest.raises(InputError, match=r"model: must give a new module .* 0.weight twice.*deepcopy"):
        Study(trainer, 12, 2, store=tmp_path)
    for parameter in shared.parameters():
        parameter.requires_grad_(False)  # a frozen part may be shared
    head = TorchTrainer(lambda: nn.Sequential(shared, nn.Linear(2, 2)), (X, Y), Recipe(1, 4), vectorise=False)
    assert Study(head, 12, 2, store=tmp_path).run("serial").outputs.shape == (2, 12, 2)


def test_integers_of_another_width_are_the_same_training():
    def build():
        return nn.Linear(3, 2)

    trainers = [TorchTrainer(build, (X, Y.astype(kind)), Recipe(1, 4)) for kind in (np.int32, np.int64)]
    assert trainers[0].fingerprint() == trainers[1].fingerprint()


def test_the_mask_of_an_array_counts():
    def digest(mask):
        values = np.ma.array([1.0, 2.0], mask=mask)
        return describe_procedure(lambda members, seed: values.mean())

    assert digest([False, True]) == digest([False, True]) != digest([False, False])


def test_a_library_that_the_user_has_patched(monkeypatch):
    """A function or a method of one's own in the place of a library's trains otherwise; what is not used does not."""
    from sklearn import linear_model

    def train(members, seed):
        return linear_model.Ridge().fit(X, Y).predict(np.sort(X))

    before = describe_procedure(train)
    ridge, unused = linear_model.Ridge, linear_model.LinearRegression
    for place, name, counts in ((np, "sort", 1), (ridge, "fit", 1), (ridge.__mro__[1], "fit", 1), (unused, "fit", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, lambda *arguments: X, raising=False)  # a class may inherit it
            assert (describe_procedure(train) != before) == counts
    assert describe_procedure(train) == before


def test_tensors_of_every_storage():
    """Conjugate, negated and strided views, quantised and ragged tensors: by their numbers."""
    digest = Content().digest
    both = torch.tensor([1 + 2j])
    assert digest(both.conj()) == digest(torch.tensor([1 - 2j])) != digest(both)
    assert digest(both.conj().imag) == digest(torch.tensor([-2.0]))
    assert digest(torch.arange(2.0)[::2]) == digest(torch.tensor([0.0]))
    with warnings.catch_warnings():  # torch is about to drop both kinds
        warnings.simplefilter("ignore")
        coarse, fine = (torch.quantize_per_tensor(torch.tensor([step]), step, 0, torch.qint8) for step in (0.2, 0.1))
        ragged = [torch.nested.nested_tensor([torch.tensor([value]), torch.zeros(2)]) for value in (1.0, 1.0, 2.0)]
    assert digest(coarse) != digest(fine)
    assert digest(ragged[0]) == digest(ragged[1]) != digest(ragged[2])


def test_numbers_that_are_equal_but_not_the_same_are_named(tmp_path):
    """scikit-learn takes 1 as one feature and 1.0 as all of them."""

    def study(most):
        return Study(lambda members, seed: np.full(6, most * seed), 6, 2, store=tmp_path)

    study(1).run("serial")
    with pytest.raises(InputError, match=r"differs in\n  procedure.uses.most: 1 there, 1.0 here"):
        study(1.0).run("serial")


def test_a_cycle_has_one_digest_from_wherever_it_is_reached():
    """What a value refers back to is part of it, and which values came before it is not."""

    def ring(label):
        first, second = {"name": "a"}, {"name": "b"}
        first["next"], second["next"], second["label"] = second, first, label
        return first, second

    first, second = ring(1)
    together = Content()
    together.digest(first)
    assert together.digest(second) == Content().digest(second)
    assert Content().digest(ring(1)[0]) == Content().digest(first) != Content().digest(ring(2)[0])


def test_a_set_of_things_that_refer_to_each_other_has_no_order():
    """A set gives its elements in an order that differs from process to process."""

    def content_of_set(met_before):
        def even(n):
            return n == 0 or odd(n - 1)

        def odd(n):
            return n != 0 and even(n - 1)

        content = Content()
        for function in {"": [], "even": [even], "odd": [odd]}[met_before]:
            content.digest(function)
        return content.digest({even, odd})

    assert content_of_set("even") == content_of_set("odd") == content_of_set("")


class Part:
    """One of several in a set, which it comes out of in the order in which they went in: all have one hash."""

    def __init__(self, name, whole):
        self.name, self.whole = name, whole

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return self is other


def test_the_order_of_a_set_does_not_count_where_its_elements_refer_back():
    def digest(names):
        whole = SimpleNamespace(parts=set())
        for name in names:
            whole.parts.add(Part(name, whole))
        assert [part.name for part in whole.parts] == list(names)
        return Content().digest(whole)

    assert len({digest(names) for names in ("abc", "acb", "bac", "cba")}) == 1
    assert digest("abc") != digest("abd")
