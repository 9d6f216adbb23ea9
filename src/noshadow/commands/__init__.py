"""The commands, a module each; ``noshadow.cli`` puts them together."""
