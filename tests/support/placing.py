"""Placements as most tests want them: virtual time alone, nothing declined, no shard."""

from dataclasses import replace

from trireme.placement.options import PLAIN
from trireme.placement.place import place


def place_plain(graph, costs, objective="makespan", **options):
    """The placement of least predicted score; options: of PlacementOptions."""
    return place(graph, costs, replace(PLAIN, objective=objective, **options))
