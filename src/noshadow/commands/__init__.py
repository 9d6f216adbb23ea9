"""The commands, a module each; ``noshadow.cli`` puts them together."""

__all__: list[str] = []
