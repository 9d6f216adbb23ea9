"""The commands of ``noshadow``, one module each."""
