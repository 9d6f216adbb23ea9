"""Nothing leaves this machine while the tests run: what would is refused and written down, and its test fails.

Python tells its audit hooks of every address that a socket connects to, sends to or looks up. Addresses of this machine
(AF_UNIX, loopback, its own) are left alone. ``conftest`` installs the hook, in this process and, by a ``sitecustomize``
on their path, in all that tests start.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg")
LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
# where Ray's own processes ask whether they run in a cloud, and tell its makers: refused, and no fault of a test
OF_RAY = ("169.254.169.254", "metadata.google.internal", "usage-stats.ray.io")
LOG = "NOSHADOW_TESTS_REFUSED"  # names the file in which every process writes down what it refused


class LeavesTheMachine(OSError):
    """A connection to somewhere else."""


def is_here(host: object) -> bool:
    """Whether an address or a name is of this machine, without asking anyone."""
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name in ("", "localhost", socket.gethostname())
    return address.is_loopback or address.is_unspecified or name in _own_addresses()


def _own_addresses() -> list[str]:
    """As Ray has them: its processes meet at the address of the machine."""
    found = []
    with suppress(OSError):
        found += socket.gethostbyname_ex(socket.gethostname())[2]  # in /etc/hosts
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nowhere:
        nowhere.connect(("198.51.100.1", 9))  # nothing is sent: it tells which address would be used
        found.append(nowhere.getsockname()[0])
    return found


def hook(event: str, arguments: tuple) -> None:
    """Refuse what leads elsewhere."""
    if event in LOOKUPS:
        host = arguments[0]
    elif event in SENDS and isinstance(arguments[1], tuple):  # the address of AF_UNIX is a path
        if event == "socket.connect" and arguments[0].type == socket.SOCK_DGRAM:
            return  # nothing is sent: it is how the own address is found out
        host = arguments[1][0]
    else:
        return
    if not is_here(host):
        if not ("ray" in sys.modules and host in OF_RAY):
            with open(os.environ[LOG], "a") as log:
                log.write(f"{event} {host}\n")
        raise LeavesTheMachine(f"{event}: {host!r} is not of this machine")


def install(folder: Path) -> None:
    """From here on, in this process and in those that it starts; ``folder`` is for the file and the path."""
    log = folder / "refused"
    log.touch()
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\nimport offline\nsys.path.pop()\n"
        "sys.addaudithook(offline.hook)\n"
    )
    os.environ[LOG] = str(log)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])
    sys.addaudithook(hook)


def refused() -> list[str]:
    """What was refused since it was last asked."""
    log = Path(os.environ[LOG])
    found = log.read_text().splitlines()
    if found:
        log.write_text("")
    return found
