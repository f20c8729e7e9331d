"""Names of the links between memory spaces, on which copies run."""

from __future__ import annotations


def link_name(source: str, target: str) -> str:
    """Return the name of the link from one memory space to another: a copy runs on it."""
    return f"{source}>{target}"


def link_ends(name: str) -> tuple[str, str]:
    """Return the two memory spaces of a link's name."""
    source, _, target = name.partition(">")
    return source, target
