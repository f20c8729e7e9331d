"""Place precision for real models on described machines, beside the usual ways at the same budget.

    python tests/support/precision_bar.py [MODEL ...] --soc rk3588 --soc coral_dev_board

Models are those of lively_models.py, or paths. The usual ways are made here anew: all integers,
first and last product float, and greedy by sensitivity, node after node. Each is measured in its
own graph and placed. Switches alone say how sensitive nodes are, and where greedy begins to look
for its end. A row says what the search takes beside the fastest of these that keeps the budget. The
exit status is 1 where the search is slower.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from float_graphs import samples_of
from mixed_graphs import trial_of_feeds

from trireme.ir.graph import Graph
from trireme.model_file.convert import convert
from trireme.quantiser.precision.budget import budget_of
from trireme.quantiser.precision.evaluate import MixedEvaluator
from trireme.quantiser.precision.meter import LossMeter, snr_loss
from trireme.quantiser.precision.mixing import Mixing
from trireme.quantiser.precision.target import opened_target
from trireme.quantiser.samples import Feeds
from trireme.quantiser.scheme import is_product
from trireme.quantiser.trial import QuantTrial

MODELS = ("mobilenet_v2", "resnet18", "bert_mini", "vit_tiny", "swin")
SOCS = ("rk3588", "coral_dev_board")
MORE_DB = (2.0, 6.0)
"""Budgets: so much more signal-to-noise than all integers."""
SAMPLES, MEASURED = 16, 4


@dataclass(frozen=True)
class Way:
    """A choice as its own graph: predicted seconds on the machine, and measured loss."""

    latency_s: float
    loss: float


class UsualWays:
    """The usual ways on one machine, without the search's own code for them.

    losses: of choices in their own graphs, which are the same on every machine
    """

    def __init__(self, evaluator: MixedEvaluator, losses: dict[frozenset[int], float]) -> None:
        self.evaluator, self.losses = evaluator, losses
        graph, units = evaluator.graph, evaluator.units
        products = [unit for unit in units if is_product(graph.node(unit))]
        self.all = self.way(units)
        self.ends = self.way(set(units) - {products[0], products[-1]})
        noise = {unit: self._switched({unit}) for unit in units}
        self.order = sorted(units, key=lambda unit: (-noise[unit], unit))

    def way(self, units: Iterable[int]) -> Way:
        """Return a choice, measured in its own graph and placed."""
        graph = self.evaluator.emitted(self.evaluator.settle(units))
        return Way(self.evaluator.target.place(graph).makespan_s, self._loss(units))

    def _loss(self, units: Iterable[int]) -> float:
        """Return the loss of a choice in its own graph."""
        taken = self.evaluator.settle(units)
        if taken not in self.losses:
            noise, _ = self.evaluator.meter.of_graph(self.evaluator.emitted(taken))
            self.losses[taken] = snr_loss(noise)
        return self.losses[taken]

    def _switched(self, units: Iterable[int]) -> float:
        """Return the loss of a choice as the graph with switches shows it."""
        return snr_loss(self.evaluator.meter.noise(self.evaluator.settle(units)))

    def greedy(self, limit: float) -> Way:
        """Return the choice with the most sensitive nodes float, as few as keep the limit.

        Switches say where that is about; graphs of their own where it is.
        """
        lefts = [self.order[count:] for count in range(len(self.order) + 1)]
        count = next(i for i, left in enumerate(lefts) if self._switched(left) <= limit)
        while self._loss(lefts[count]) > limit:
            count += 1
        while count and self._loss(lefts[count - 1]) <= limit:
            count -= 1
        return self.way(lefts[count])


def model(name: str) -> tuple[Graph, list[Feeds]]:
    """Return a float graph and samples of its inputs."""
    if "." in name:
        graph = convert(name)
        data = samples_of(graph, SAMPLES, 1)
        return graph, [{key: rows[k] for key, rows in data.items()} for k in range(SAMPLES)]
    from lively_models import write

    with tempfile.TemporaryDirectory() as folder:
        path, (samples, _), _ = write(name, folder)
        return convert(path), [{"input": x} for x in samples[:SAMPLES]]


def rows(
    graph: Graph, feeds: list[Feeds], socs: Iterable[str], more_db: Sequence[float] = MORE_DB
) -> Iterator[tuple[str, float, dict[str, Way]]]:
    """Yield (machine, dB of the budget, ways by name with the search's) for each budget.

    more_db: budgets, as in MORE_DB
    """
    trial = trial_of_feeds(graph, feeds)
    held, losses = feeds[:MEASURED], cast(dict[frozenset[int], float], {})
    budget = budget_of(0.0, "snr", None)
    with LossMeter(trial, "min_max", held, lambda: held, budget, None) as meter:
        for soc in socs:
            with opened_target(None, soc, None) as target:
                evaluator = MixedEvaluator(trial, "min_max", target, meter, 0, lambda done: None)
                usual = UsualWays(evaluator, losses)
                for more in more_db:
                    limit = usual.all.loss - more
                    found = {
                        "all": usual.all,
                        "ends": usual.ends,
                        "greedy": usual.greedy(limit),
                        **searched(trial, held, soc, limit),
                    }
                    yield soc, -limit, found


def searched(trial: QuantTrial, held: list[Feeds], soc: str, limit: float) -> dict[str, Way]:
    """Return what the search chooses, and its CPU seconds beside the choices placed."""
    start = time.process_time()
    mixing = Mixing(budget_of(-limit, "snr", None), None, soc, 0, lambda: held)
    _, report = mixing.place(trial, "min_max", held, None, lambda *told: None)
    seconds, chosen = time.process_time() - start, report.chosen
    return {
        "search": Way(chosen.latency_s, chosen.loss),
        "seconds": Way(seconds, report.placements),
    }


def line(name: str, soc: str, budget_db: float, found: dict[str, Way]) -> tuple[str, bool]:
    """Return a row of the table, and whether the search is no slower than the usual ways."""
    usual = {key: found[key] for key in ("all", "ends", "greedy")}
    kept = [way.latency_s for way in usual.values() if way.loss <= -budget_db]
    best, search = min(kept, default=float("inf")), found["search"]
    cells = [
        f"{way.latency_s * 1e3:.3f}{'' if way.loss <= -budget_db else ' (over)'}"
        for way in usual.values()
    ]
    cells += [f"{search.latency_s * 1e3:.3f}", f"{best / search.latency_s:.2f}"]
    took = found["seconds"]
    cells += [f"{took.loss:.0f}", f"{took.latency_s:.0f}"]
    good = search.latency_s <= best * (1 + 1e-9) and search.loss <= -budget_db
    return f"| {name} | {soc} | {budget_db:.1f} | {' | '.join(cells)} |", good


def main() -> int:
    """Print a row for each model, machine and budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--soc", action="append")
    options = parser.parse_args()
    heads = "model,machine,budget dB,all ms,ends ms,greedy ms,search ms,times as fast,placed,CPU s"
    print("| " + " | ".join(heads.split(",")) + " |")
    bad = 0
    for name in options.models:
        for row in rows(*model(name), options.soc or SOCS):
            text, good = line(name, *row)
            bad += not good
            print(text + ("" if good else " slower"), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
