"""Pages from results alone: an overview, a page per setting, their figures, and the README's table.

A page is a registry of sections (``overview.SECTIONS``, ``one_setting.SECTIONS``): each a function of the results with
its figures. A section that has nothing to say of a result is left out.
"""

from noshadow.bench.pages.write import draw_setting, fill_readme, write_pages

__all__ = ["draw_setting", "fill_readme", "write_pages"]
