"""Hold the measurements of a benchmark and their figures; stored as JSON, pooled with later runs.

A round's calls are kept as nanoseconds, or as PERCENTILES + 1 evenly spaced quantiles of them where
there were more, so that files stay small; each round then has about the same weight.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trireme.tools.bench.peers import OURS

PERCENTILES = 20


@dataclass
class EngineRun:
    """One engine on one model with one number of threads.

    reason: why it has no figures; "" when it ran
    load_s, first_s: from the model file to ready, and to the first result, nothing cached;
        warm_load_s, warm_first_s: the same in a fresh process that finds the first one's caches
    convert_s: what its converter took beforehand; import_s: importing its package
    imported_bytes: memory after the import; cold_peak_bytes: the most while loading, nothing
        cached; peak_bytes: the most of a warm load and all calls (all resident, Linux's VmHWM)
    rounds: for each round, nanoseconds of its calls (see the module)
    idle_share: CPU seconds it used per second of other engines' turns
    apart: how its outputs differ from the other engines', "" when they agree; largest: the
        largest difference from the reference's outputs, relative to their largest value
    facts: version, settings, our nodes that run on the numpy reference
    """

    engine: str
    reason: str = ""
    convert_s: float | None = None
    import_s: float | None = None
    load_s: float | None = None
    first_s: float | None = None
    warm_load_s: float | None = None
    warm_first_s: float | None = None
    imported_bytes: int | None = None
    cold_peak_bytes: int | None = None
    peak_bytes: int | None = None
    rounds: list[list[int]] = field(default_factory=list)
    idle_share: float = 0.0
    apart: str = ""
    largest: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        """Whether there are times to report."""
        return not self.reason and bool(self.rounds)

    def best_s(self) -> float:
        """Return the shortest call."""
        return min(min(calls) for calls in self.rounds) / 1e9

    def quantile_s(self, share: float) -> float:
        """Return a quantile of all calls, each round having the same weight."""
        pooled = sorted((t, 1 / len(calls)) for calls in self.rounds for t in calls)
        wanted, seen = share * len(self.rounds), 0.0
        for time, weight in pooled:
            seen += weight
            if seen >= wanted - 1e-9:
                return time / 1e9
        return pooled[-1][0] / 1e9


@dataclass
class BenchRow:
    """All engines on one model with one number of threads; ours is among them."""

    model: str
    threads: int
    engines: dict[str, EngineRun]

    @property
    def ours(self) -> EngineRun:
        """Our own run."""
        return self.engines[OURS]

    def peers(self) -> list[str]:
        """Return the peers that have times, if we have."""
        if not self.ours.ran:
            return []
        return [name for name, run in self.engines.items() if name != OURS and run.ran]

    def ratio(self, peer: str) -> float:
        """Return the median over rounds of the peer's best over our best; above 1 we are faster."""
        pairs = zip(self.engines[peer].rounds, self.ours.rounds, strict=False)
        return statistics.median(min(theirs) / min(ours) for theirs, ours in pairs)

    def median_ratio(self, peer: str) -> float:
        """Return the peer's median over ours."""
        return self.engines[peer].quantile_s(0.5) / self.ours.quantile_s(0.5)

    def best_peer(self) -> str:
        """Return the peer that is fastest against us, or "" without any."""
        return min(self.peers(), key=self.ratio, default="")


@dataclass(frozen=True)
class Summary:
    """Rows of one number of threads taken together; means are geometric.

    best_mean: against each model's best peer; worst: the lowest of those, with its model and peer
    means: against each peer, over the models it ran; counts: how many those are
    """

    threads: int
    best_mean: float
    best_median_mean: float
    worst: tuple[str, str, float]
    means: Mapping[str, float]
    counts: Mapping[str, int]


def summarise(rows: Sequence[BenchRow]) -> list[Summary]:
    """Return a summary for each number of threads that has ratios."""
    summaries = []
    for threads in sorted({row.threads for row in rows}):
        mine = [row for row in rows if row.threads == threads and row.peers()]
        if not mine:
            continue
        best = [(row, row.best_peer()) for row in mine]
        worst, peer = min(best, key=lambda pair: pair[0].ratio(pair[1]))
        names = sorted({name for row in mine for name in row.peers()})
        ran = {name: [row for row in mine if name in row.peers()] for name in names}
        summaries.append(
            Summary(
                threads,
                geometric_mean(row.ratio(name) for row, name in best),
                geometric_mean(min(map(row.median_ratio, row.peers())) for row in mine),
                (worst.model, peer, worst.ratio(peer)),
                {name: geometric_mean(row.ratio(name) for row in ran[name]) for name in names},
                {name: len(ran[name]) for name in names},
            )
        )
    return summaries


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the mean of ratios that does not depend on which side is called ours."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def thin(times_ns: Sequence[int]) -> list[int]:
    """Return the times of a round, or evenly spaced quantiles where there are many."""
    if len(times_ns) <= PERCENTILES:
        return list(times_ns)
    ordered, last = sorted(times_ns), len(times_ns) - 1
    return [ordered[round(last * i / PERCENTILES)] for i in range(PERCENTILES + 1)]


def rows_json(rows: Sequence[BenchRow]) -> list[dict[str, Any]]:
    """Return the rows with the figures made of them, for JSON."""
    return [
        {
            "model": row.model,
            "threads": row.threads,
            "best_peer": row.best_peer(),
            "engines": {name: _engine_json(row, name) for name in row.engines},
        }
        for row in rows
    ]


def _engine_json(row: BenchRow, name: str) -> dict[str, Any]:
    run = row.engines[name]
    data = asdict(run)
    if run.ran:
        data |= {
            "best_s": run.best_s(),
            "median_s": run.quantile_s(0.5),
            "p90_s": run.quantile_s(0.9),
        }
    if name in row.peers():
        data |= {"ratio": row.ratio(name), "median_ratio": row.median_ratio(name)}
    return data


def rows_from_json(stored: Iterable[Mapping[str, Any]]) -> list[BenchRow]:
    """Return rows as `rows_json` wrote them, pooling the rounds of a model that comes twice."""
    rows: dict[tuple[str, int], BenchRow] = {}
    for data in stored:
        known = EngineRun.__dataclass_fields__
        engines = {
            name: EngineRun(**{key: value for key, value in run.items() if key in known})
            for name, run in data["engines"].items()
        }
        row = BenchRow(data["model"], data["threads"], engines)
        earlier = rows.setdefault((row.model, row.threads), row)
        if earlier is not row:
            _pool(earlier, row)
    return list(rows.values())


def _pool(row: BenchRow, later: BenchRow) -> None:
    """Add a later run's rounds, where both runs have them, and keep the shorter load times."""
    for name, run in later.engines.items():
        mine = row.engines.setdefault(name, run)
        if mine is run:
            continue
        mine.rounds += run.rounds
        mine.reason = mine.reason or run.reason
        mine.apart = mine.apart or run.apart
        mine.idle_share = max(mine.idle_share, run.idle_share)
        for key in ("load_s", "first_s", "warm_load_s", "warm_first_s", "import_s", "convert_s"):
            given = [v for v in (getattr(mine, key), getattr(run, key)) if v is not None]
            setattr(mine, key, min(given, default=None))
