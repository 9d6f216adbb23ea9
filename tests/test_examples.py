"""The examples in docstrings run, and every public function has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import noshadow

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PACKAGES = ("noshadow", *(f"noshadow.{part}" for part in ("attacks", "evaluate", "network", "shadow", "theory")))
SHOWN_ELSEWHERE = ("halves", "oracle", "over_predictions")  # parts of what ceiling and oracle_ceiling do


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
    assert ">>>" in text or name in SHOWN_ELSEWHERE
