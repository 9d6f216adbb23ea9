"""JSON Schemas of what commands print with ``--json``, as files beside this one."""

__all__: list[str] = []
