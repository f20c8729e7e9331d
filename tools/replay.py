"""`trireme replay`: record a run, run it again bit for bit, find where two runs part."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from trireme.placement.lockfile import load_lock
from trireme.runtime.session.replay import (
    PLACEMENT,
    compared,
    first_divergence,
    load_bundle,
    record,
    rerun,
    save_bundle,
)
from trireme.tools.feeds import make_feeds
from trireme.tools.output import emit
from trireme.tools.parsed import fill_from_lock, open_session


def replay(options: argparse.Namespace) -> int:
    """Record with --record; else compare a bundle with a rerun or with another bundle."""
    folder = Path(options.bundle)
    if options.record:
        with open_session(options) as session:
            feeds = make_feeds(options, session.inputs)
            made = record(session, feeds, options.seed)
            save_bundle(folder, session, made, feeds)
        text = f"{folder}: {len(made.order)} tasks, {len(made.all)} tensors"
        emit(options, {"bundle": str(folder), "tensors": len(made.all)}, text)
        return 0
    recorded, feeds = load_bundle(folder)
    if options.against:
        other, _ = load_bundle(Path(options.against))
    else:
        locked = load_lock(folder / PLACEMENT)
        fill_from_lock(options, locked)
        options.mode = recorded.mode
        options.subgraphs, options.execution = recorded.subgraphs, recorded.execution
        with open_session(options, placement=locked) as session:
            other = rerun(session, feeds, recorded)
    parted = first_divergence(recorded, other)
    both, every = compared(recorded, other), len(recorded.all)
    data: dict[str, Any] = {"same": parted is None, "tensors": every, "compared": both}
    if parted is None:
        alone = (
            "" if both == every else f" ({every - both} more leave a task in the first run alone)"
        )
        emit(options, data, f"the same, bit for bit: {both} tensors{alone}")
        return 0
    one, two = parted
    data["first_divergence"] = [vars(one), vars(two)]
    where = f"{one.node} on {one.device}" + (
        "" if one.device == two.device else f", then on {two.device}"
    )
    emit(options, data, f"first divergent tensor: {one.value!r} of {where}")
    return 1
