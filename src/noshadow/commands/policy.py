"""One policy for all commands: what goes wrong is said in one sentence, in the words of the command line.

    0  fine                                                     1  over policy, and nothing else
    2  usage: options that are wrong, contradict each other, or name what is not there
    3  could not do it: damaged files, no memory, no space, missing packages, failed training, Ctrl-C

Functions name their arguments (``ridge: expected …``), commands their options (``--ridge: expected …``): a command
says once what its options are called, and the sentence is put into those words here.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from noshadow.errors import FileError, InputError, NoshadowWarning

__all__ = ["COULD_NOT", "MOST_REASONS", "OVER_POLICY", "USAGE", "Command", "explained_errors"]

OVER_POLICY, USAGE, COULD_NOT = 1, 2, 3
MOST_REASONS = 3
_ARGUMENT = re.compile(r"\b([a-z_]+)=('[^']*'|[\w.]+|(?=[\s,;)]|$))")  # of Python: head='softmax', ridge=


class Command:
    """The words of a command, and the notes that were given while it ran.

    options   what it calls the arguments of the functions behind it: ``ridge`` is ``--ridge``
    contents  where a file or a folder holds others of them: ``features`` is ``features in FILE``
    more      arguments that a file holds and an option could have given: advice names the option
    """

    def __init__(self, options: Mapping[str, str], contents: Mapping[str, str], more: Collection[str] = ()) -> None:
        self._options, self._contents, self._more = options, contents, more
        self._names = {**contents, **options}
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> list[str]:
        """Every warning so far, once, in the command's words."""
        return [self.says(note) for note in self._notes]

    def note(self, text: str) -> None:
        self._notes[text] = None

    def is_usage(self, error: InputError) -> bool:
        """Whether what was typed is at fault: an option, not what a file holds."""
        return not isinstance(error, FileError) and error.argument.split(", ")[0] in self._options

    def says(self, text: str) -> str:
        """The text on one line, ``ridge: …`` as ``--ridge: …``, ``head='softmax'`` as ``--head softmax``,
        ``ridge=`` as ``--ridge``."""
        text = " ".join(text.split())
        about, colon, rest = text.partition(": ")
        arguments = about.split(", ")
        if colon and all(argument in self._names for argument in arguments):
            text = f"{', '.join(self._names[argument] for argument in arguments)}: {rest}"
        return _ARGUMENT.sub(self._as_option, text)

    def hint(self, text: str) -> str:
        """Advice that was written for Python, in the words of the command; what it lacks ``noshadow audit`` has."""
        said = self.says(text)
        elsewhere = _ARGUMENT.sub(lambda found: _option(*found.groups()), said)
        return said if elsewhere == said else f"{elsewhere} (options of noshadow audit)"

    def _as_option(self, found: re.Match[str]) -> str:
        argument, value = found.groups()
        if argument in self._more or self._options.get(argument, "").startswith("--"):
            return _option(argument, value)
        if argument in self._contents and not value:
            return self._contents[argument]
        return found.group(0)


def _option(argument: str, value: str) -> str:
    """``head='softmax'`` as ``--head softmax``."""
    name, value = argument.replace("_", "-"), value.strip("'")
    return {"True": f"--{name}", "False": f"--no-{name}"}.get(value, f"--{name} {value}".rstrip())


@contextmanager
def explained_errors(
    options: Mapping[str, str] | None = None, contents: Mapping[str, str] | None = None, more: Collection[str] = ()
) -> Iterator[Command]:
    """Around all that a command does: errors become a sentence on stderr and an exit code, warnings become notes.

    The arguments are those of ``Command``.
    """
    command = Command(options or {}, contents or {}, more)
    with warnings.catch_warnings():
        shown_before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, NoshadowWarning):
                command.note(str(message))
            else:
                shown_before(message, category, *rest, **more)

        warnings.showwarning = show
        warnings.simplefilter("always", NoshadowWarning)
        try:
            yield command
            sys.stdout.flush()  # here, and not when Python ends, whoever reads it may turn out to be gone
        except typer.Exit:
            raise
        except KeyboardInterrupt as error:
            _end(str(error) or "interrupted, nothing was written", COULD_NOT, command, "")
        except BrokenPipeError:  # as head does, which has what it wanted
            _drop_output()
            raise typer.Exit(COULD_NOT) from None
        except InputError as error:
            _end(str(error), USAGE if command.is_usage(error) else COULD_NOT, command)
        except Exception as error:
            _end(_explanation(error), COULD_NOT, command)


def _explanation(error: Exception) -> str:
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict):  # a StudyError, whose message goes on with a traceback
        reasons = [f"{key}: {failure.reason}" for key, failure in list(failures.items())[:MOST_REASONS]]
        more = [f"{len(failures) - MOST_REASONS} more"] if len(failures) > MOST_REASONS else []
        return f"{str(error).partition(chr(10))[0]} {'; '.join(reasons + more)}"
    if isinstance(error, MemoryError) or "allocate memory" in str(error):  # NumPy's and torch's
        return f"out of memory ({str(error) or 'none is left'}); use fewer records or features, or a larger machine"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if isinstance(error, (ImportError, OSError)):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(last.filename)}, line {last.lineno}"
    return (
        f"this should not have happened, please report it: {type(error).__name__}: {error} "
        f"({where}; NOSHADOW_TRACEBACK=1 shows more)"
    )


def _drop_output() -> None:
    """What could not be written to stdout is not tried again when Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(text: str, code: int, command: Command, kind: str = "error: ") -> NoReturn:
    if os.environ.get("NOSHADOW_TRACEBACK"):
        traceback.print_exc()
    _drop_output()
    from noshadow.commands.render import print_problem

    print_problem(f"{kind}{command.says(text)}", command.notes)
    raise typer.Exit(code) from None
