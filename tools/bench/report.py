"""The tables that `trireme bench` prints, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath

from trireme.tools.bench.peers import OURS, PEERS
from trireme.tools.bench.result import BenchRow, EngineRun, Summary, summarise

NOISY_SHARE = 0.02


def report(rows: Sequence[BenchRow]) -> str:
    """Return everything there is to say about the rows."""
    parts = []
    for threads in sorted({row.threads for row in rows}):
        mine = [row for row in rows if row.threads == threads]
        parts.append(f"## {threads} thread{'s' if threads > 1 else ''}\n\n{time_table(mine)}")
        parts += [_summary(s) for s in summarise(mine)]
    parts.append(load_table(rows))
    notes = remarks(rows)
    if notes:
        parts.append("\n".join(f"* {note}" for note in notes))
    return "\n\n".join(parts)


def time_table(rows: Sequence[BenchRow]) -> str:
    """Return a line per model: each engine's best, median and p90 in ms, and its ratio to ours."""
    peers = _columns(rows)
    head = [
        "model",
        "trireme, ms: best median p90",
        *(f"{p}: ratio" for p in peers),
        "best peer",
        "ratio",
        "of medians",
    ]
    lines = []
    for row in rows:
        cells = [_name(row), _times(row.ours) if row.ours.ran else "-"]
        cells += [_cell(row, peer) for peer in peers]
        best = row.best_peer()
        medians = min((row.median_ratio(peer) for peer in row.peers()), default=0.0)
        cells += [best, f"**{row.ratio(best):.2f}**", f"{medians:.2f}"] if best else ["-"] * 3
        lines.append(cells)
    return markdown_table(head, lines)


def _cell(row: BenchRow, peer: str) -> str:
    run = row.engines.get(peer)
    if run is None or not run.ran:
        return "-"
    if not row.ours.ran:
        return _times(run)
    return f"{_times(run)}: {row.ratio(peer):.2f}{' APART' if run.apart else ''}"


def _times(run: EngineRun) -> str:
    return " ".join(_ms(t) for t in (run.best_s(), run.quantile_s(0.5), run.quantile_s(0.9)))


def _ms(seconds: float) -> str:
    """Return milliseconds with four figures or so."""
    digits = 4 if seconds < 1e-4 else 3 if seconds < 1e-2 else 2 if seconds < 0.1 else 1
    return f"{seconds * 1e3:.{digits}f}"


def _summary(summary: Summary) -> str:
    model, peer, ratio = summary.worst
    lines = [
        f"Geometric mean against each model's best peer: **{summary.best_mean:.2f}** "
        f"(by medians {summary.best_median_mean:.2f}); "
        f"the worst model is {_short(model)}, {ratio:.2f} against {peer}.",
        "Against each peer: "
        + ", ".join(
            f"{name} {mean:.2f} ({summary.counts[name]} models)"
            for name, mean in summary.means.items()
        )
        + ".",
    ]
    return "\n".join(lines)


LOADS: tuple[tuple[str, Callable[[EngineRun], float | None], str], ...] = (
    ("import, ms", lambda run: run.import_s, "ms"),
    ("load, ms", lambda run: run.load_s, "ms"),
    ("first result", lambda run: run.first_s, "ms"),
    ("warm load", lambda run: run.warm_load_s, "ms"),
    ("warm first", lambda run: run.warm_first_s, "ms"),
    ("converter", lambda run: run.convert_s, "ms"),
    ("peak cold, MB", lambda run: run.cold_peak_bytes, "MB"),
    ("peak warm", lambda run: run.peak_bytes, "MB"),
    ("over import", lambda run: (run.peak_bytes or 0) - (run.imported_bytes or 0), "MB"),
)
_SCALES = {"ms": 1e3, "MB": 1e-6}


def load_table(rows: Sequence[BenchRow]) -> str:
    """Return a line per model and engine, for the first number of threads: loading and memory."""
    lines = []
    firsts = {row.model: row for row in reversed(rows)}
    for row in (row for row in rows if firsts[row.model] is row):
        for name in (OURS, *_columns([row])):
            run = row.engines.get(name)
            if run is None or not run.ran:
                continue
            figures = [(get(run), _SCALES[unit]) for _, get, unit in LOADS]
            cells = ["-" if v is None else f"{v * scale:.0f}" for v, scale in figures]
            lines.append([_short(row.model), name, *cells])
    return markdown_table(["model", "engine", *(head for head, _, _ in LOADS)], lines)


def remarks(rows: Sequence[BenchRow]) -> list[str]:
    """Return what a reader of the tables must know, each said once."""
    found: dict[str, list[str]] = {}
    for row in rows:
        where = _short(row.model)
        for name, run in row.engines.items():
            notes = [f"{name}: {run.reason}"] if run.reason else []
            notes += [f"{name} disagrees: {run.apart}"] if run.apart else []
            if run.idle_share > NOISY_SHARE:
                notes.append(f"{name} used {run.idle_share:.0%} of a CPU in others' turns")
            slow = run.facts.get("reference_nodes", [])
            notes += [f"{name} runs on numpy: {node}" for node in slow]
            notes += [f"{name}: {note}" for note in run.facts.get("notes", [])]
            for note in notes:
                found.setdefault(note, []).append(where)
    return [f"{note} [{_listed(list(dict.fromkeys(models)))}]" for note, models in found.items()]


def _listed(models: Sequence[str]) -> str:
    """Return the models' names, the first few of many."""
    more = f" and {len(models) - 3} more" if len(models) > 5 else ""
    return ", ".join(models[:3] if more else models) + more


def _columns(rows: Sequence[BenchRow]) -> list[str]:
    given = {name for row in rows for name, run in row.engines.items() if run.ran}
    return [name for name in PEERS if name in given]


def _name(row: BenchRow) -> str:
    count = len(row.ours.facts.get("reference_nodes", []))
    return _short(row.model) + (f" ({count} on numpy)" if count else "")


def _short(model: str) -> str:
    return PurePath(model).name


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
