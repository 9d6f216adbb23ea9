"""The tests run without a way out: this is what that means."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request

import pytest

from tests import offline

ELSEWHERE = "192.0.2.1"  # set aside for documentation: nobody is there


def test_addresses_of_this_machine():
    for here in ("127.0.0.1", "127.9.9.9", "::1", "localhost", b"localhost", None, "", "0.0.0.0", socket.gethostname()):
        assert offline.is_here(here), here
    for elsewhere in (ELSEWHERE, "8.8.8.8", "2001:db8::1", "example.org", b"example.org", "localhost.example.org"):
        assert not offline.is_here(elsewhere), elsewhere


@pytest.mark.parametrize(
    "leave",
    [
        lambda: socket.create_connection((ELSEWHERE, 80), timeout=1),
        lambda: socket.socket().connect_ex((ELSEWHERE, 80)),
        lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", (ELSEWHERE, 53)),
        lambda: socket.getaddrinfo("example.org", 443),
        lambda: urllib.request.urlopen("https://example.org", timeout=1),
    ],
)
def test_whatever_leaves_is_refused_and_written_down(leave):
    with pytest.raises(OSError, match="not of this machine"):
        leave()
    assert len(offline.refused()) == 1


def test_a_process_that_hides_its_failure_is_found_out():
    script = (
        f"import socket\ntry:\n    socket.create_connection(({ELSEWHERE!r}, 80), timeout=1)\nexcept OSError:\n    pass"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert offline.refused() == [f"socket.getaddrinfo {ELSEWHERE}"]


def test_this_machine_may_be_spoken_to():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    one, other = socket.socketpair()
    one.close()
    other.close()
    assert offline.refused() == []
