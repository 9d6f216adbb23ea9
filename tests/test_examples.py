"""The examples in docstrings run, and every public name has one."""

from __future__ import annotations

import doctest
import functools
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import noshadow

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PACKAGES = ("noshadow", *(f"noshadow.{part}" for part in ("attacks", "evaluate", "network", "shadow", "theory")))
REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "api"
FOR_AUTHORS = ("noshadow.scores", "noshadow.predict")  # of a new score: the how-to on extending shows one that runs


def examples():
    """Every docstring of the package with an example in it, by name."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for found in pkgutil.walk_packages(noshadow.__path__, "noshadow."):
        if found.name.split(".")[1] not in ("__main__", "bench"):
            for test in finder.find(importlib.import_module(found.name), found.name):
                if test.examples:
                    yield test


EXAMPLES = {test.name: test for test in examples()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_do_what_they_say(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = []
    failed, tried = doctest.DocTestRunner(optionflags=OPTIONS).run(EXAMPLES[name], out=report.append)
    assert tried
    assert not failed, "".join(report)


def functions():
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            if inspect.isfunction(value := getattr(module, name)):
                yield package, name, value


@pytest.mark.parametrize(("package", "name", "function"), list(functions()))
def test_public_functions_say_what_they_take_and_give(package, name, function):
    text = inspect.getdoc(function)
    arguments, _, rest = text.partition("\nReturns\n-------\n")
    assert "\nParameters\n----------\n" in arguments
    assert rest
    described = arguments.partition("\nParameters\n----------\n")[2]
    heads = [line.partition(" : ")[0] for line in described.splitlines() if line and not line.startswith(" ")]
    described = {word.strip("* ") for head in heads for word in head.split(",")}
    taken = set(inspect.signature(function).parameters)
    assert taken <= described, taken - described


def shown_in_the_reference():
    """What the pages of the API show: the full name of each, and of a class the members that its page names."""
    for page in sorted(REFERENCE.glob("*.rst")):
        module = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"\.\. (?:currentmodule|automodule):: (\S+)", line):
                module = found[1]
            elif found := re.match(r"\.\. auto(?:function|class|exception):: (\S+)", line):
                name = found[1] if found[1].startswith("noshadow.") else f"{module}.{found[1]}"
                if not name.startswith(FOR_AUTHORS):
                    yield name, None
            elif (found := re.match(r"   :members:(.*)", line)) and not name.startswith(FOR_AUTHORS):
                yield name, [part.strip() for part in found[1].split(",") if part.strip()]


def public():
    """Every public function and class, by its full name: what the packages list and what the reference shows."""
    names = {name for name, _ in shown_in_the_reference()}
    names |= {f"{package}.{name}" for package in PACKAGES for name in importlib.import_module(package).__all__}
    found = {name: value_of(name) for name in sorted(names)}
    return {name: value for name, value in found.items() if inspect.isfunction(value) or inspect.isclass(value)}


def value_of(name):
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def typed(value) -> str:
    """What the examples of a docstring type; nothing where it has none under their heading."""
    _, heading, examples = (inspect.getdoc(value) or "").partition("\nExamples\n--------\n")
    return "".join(example.source for example in doctest.DocTestParser().get_examples(examples)) if heading else ""


@pytest.mark.parametrize(("name", "value"), public().items())
def test_every_public_name_has_an_example_that_uses_it(name, value):
    last = name.rpartition(".")[2]
    used = typed(value)
    assert used, f"{name} has no Examples section"
    assert name in EXAMPLES or f"{value.__module__}.{last}" in EXAMPLES, f"nothing runs the example of {name}"
    if inspect.isfunction(value):
        assert re.search(rf"\b{last}\b", used), f"the example of {name} does not call it"


def members():
    """The documented methods and properties that the reference shows, each with its class."""
    for name, chosen in shown_in_the_reference():
        if chosen is None:
            continue
        kind = value_of(name)
        for member, value in vars(kind).items():
            method = inspect.isfunction(getattr(value, "__func__", value))
            asked = method or isinstance(value, (property, functools.cached_property))
            if asked and value.__doc__ and not member.startswith("_") and member in (chosen or [member]):
                yield f"{name}.{member}", kind, member


@pytest.mark.parametrize(("name", "kind", "member"), list(members()))
def test_every_method_of_the_reference_is_used_in_an_example(name, kind, member):
    """In its own, or in one of its class."""
    beside = [typed(kind), *(typed(getattr(value, "__func__", value)) for value in vars(kind).values())]
    assert any(re.search(rf"\.{member}\b", used) for used in beside), f"no example of {kind.__name__} uses {name}"
