"""Plain files carry no checksum of their own: one is taken when a part is first read, and compared from then on.

A layer is read once when it is opened, so that every later pass, here or in another process that the layer was sent to,
sees the records that were checked then or none. What is damaged before a layer is opened shows only where the file has
a checksum inside (``LastLayer.save``) or a store remembers the digest of the records.
"""

from __future__ import annotations

import zlib
from typing import Any

from noshadow.errors import FileError

__all__ = ["Checksums"]


class Checksums:
    """CRC-32 of the parts of a file, by number: every single flipped bit changes it."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def check(self, number: int, content: Any, what: str) -> None:
        """Take the checksum of a part, or refuse one that is not what it was; ``what`` names it: path and rows."""
        found = zlib.crc32(content)
        if self._known.setdefault(number, found) != found:
            raise FileError(
                f"records: {what} are not what they were when they were first read, though nothing wrote to the file: "
                "its disk is damaged; bring the file back from where it came, and open the layer again"
            )
