"""A worker process: reads tasks from its standard input, writes outcomes to its standard output.

While a task is performed it also writes, a few times a second at most, how many models more are done.

It is a fresh interpreter, not a fork, so threads and locks of the parent cannot hang it, and it does not
import the parent's main script, so scripts need no ``if __name__ == "__main__"``. What it receives comes from
its parent through a pipe that only the two of them hold.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import struct
import sys
import threading
import time
from typing import IO, Any

from noshadow.shadow.work import Train, perform

__all__ = ["SECONDS_BETWEEN_NEWS", "main", "receive", "send"]

SECONDS_BETWEEN_NEWS = 0.25
_HEADER = struct.Struct("!Q")


def send(pipe: IO[bytes], content: bytes) -> None:
    """Write one message."""
    pipe.write(_HEADER.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes:
    """Read one message; ``EOFError`` when the other side is gone."""
    (length,) = _HEADER.unpack(_read(pipe, _HEADER.size))
    return _read(pipe, length)


def _read(pipe: IO[bytes], length: int) -> bytes:
    content = pipe.read(length)
    if len(content) != length:
        raise EOFError
    return content


def main() -> None:
    """Serve until the parent closes the pipe or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what train prints must not end up among the outcomes
    threads = int.from_bytes(receive(inbox), "big")
    train = _load(receive(inbox))
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(inbox, tasks), daemon=True).start()
    while True:
        outcome = perform(train, pickle.loads(tasks.get()), threads, _News(outbox))
        send(outbox, pickle.dumps(outcome, protocol=5))


class _News:
    """Gathers what is done and sends it on now and then."""

    def __init__(self, outbox: IO[bytes]) -> None:
        self._outbox = outbox
        self._models = 0.0
        self._sent = time.monotonic()

    def __call__(self, models: float) -> None:
        self._models += models
        now = time.monotonic()
        if now - self._sent >= SECONDS_BETWEEN_NEWS:
            send(self._outbox, pickle.dumps(self._models, protocol=5))
            self._models, self._sent = 0.0, now


def _listen(inbox: IO[bytes], tasks: queue.SimpleQueue[bytes]) -> None:
    """Leaves at once when the parent is gone, even in the middle of a training that takes hours."""
    try:
        while True:
            tasks.put(receive(inbox))
    except EOFError:
        sys.stderr.flush()
        os._exit(1)


def _load(content: bytes) -> Train:
    try:
        train: Train = pickle.loads(content)
        return train
    except Exception as error:
        problem = ImportError(f"train: could not be loaded in a worker process: {type(error).__name__}: {error}")

        def unloadable(members: Any, seed: int) -> Any:
            raise problem

        return unloadable
