"""One file per setting. To add one, add a file with a ``SETTING``."""

__all__: list[str] = []
