"""``python -m noshadow``."""

from noshadow.cli import main

main()
