"""The paper's eight settings, their tables and figures."""

__all__: list[str] = []
