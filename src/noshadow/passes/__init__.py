"""Passes over the records of a layer: in one go, or in blocks that are kept on disk or computed on other machines.

sums      what is summed over records, and ``summed``, which does it as the layer says
blocks    records in blocks; the sums of blocks added in a tree of one shape, whoever computes them
store     a folder that keeps what is done, so that an interrupted run goes on
ray_tasks parts of some work as tasks of Ray
run       which of these, from what a user says
"""

from noshadow.passes.blocks import Blocks
from noshadow.passes.run import in_blocks, on_ray, require_engine
from noshadow.passes.sums import Additive, Sums, summed

__all__ = ["Additive", "Blocks", "Sums", "in_blocks", "on_ray", "require_engine", "summed"]
