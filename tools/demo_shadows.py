"""The shadow models of ``noshadow demo``: how far those that the package ships are from models trained now.

python tools/demo_shadows.py STORE            trains them, keeps them in the folder STORE, and compares
python tools/demo_shadows.py STORE --write    and puts them into the package
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from noshadow.commands.digits_shadows import SHIPPED, retrained, shipped, write_shipped


def main() -> int:
    places = [argument for argument in sys.argv[1:] if argument != "--write"]
    if len(places) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    found = retrained(Path(places[0]))
    if "--write" in sys.argv:
        write_shipped(found)
        SHIPPED.chmod(0o644)  # it says nothing of anyone
    ours = shipped()
    apart = np.abs(found.signal - ours.signal).max()
    rates = np.abs(found.lira().success_rate - ours.lira().success_rate).max()
    print(f"{len(found.signal)} models: statistics differ by {apart:.4f} at most, success rates by {rates:.4f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
