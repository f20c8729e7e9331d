"""What each mechanism of the placement search earns: `python -m lab.speed.ablate OUT.jsonl`.

Every mechanism is left out in turn, on the 300 seeded cases or on the zoo's models and the
described machines (`--zoo`). A line of the file is one search: the score, the bound and the CPU
time. Searches that the file has are not repeated. `--table` prints the mean and the largest growth
of the score, and the CPU time relative to the whole.
"""

import argparse
import collections
import contextlib
import functools
import json
import math
import multiprocessing
import os
import pathlib
import time
from unittest import mock

from placement_cases import case
from zoo import zoo_folder

from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.devices.described.soc import load_soc, soc_names
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise
from trireme.placement import objective, search, stages, starts
from trireme.placement.pricing import Pricing
from trireme.placement.search import Search

CASES = 300


def patched(owner, name, value):
    return lambda: mock.patch.object(owner, name, value)


def no_starts(*left_out):
    """Leave out starts by name."""
    whole = starts.starts

    def some(*args):
        return [row for row in whole(*args) if row[0] not in left_out]

    return patched(search, "starts", some)


def no_rules(*left_out):
    """Leave out rules that make tasks: both where all are tried and where the quick ones are."""

    @contextlib.contextmanager
    def without():
        with contextlib.ExitStack() as stack:
            for name in left_out:
                instead = stages.asap if name == "critical_path_first" else None
                nothing = (lambda *_: None) if instead is None else lambda p, a: stages.asap(p, a)
                stack.enter_context(mock.patch.object(stages, name, nothing))
                if hasattr(objective, name):
                    stack.enter_context(mock.patch.object(objective, name, nothing))
            yield

    return without


def one_order():
    whole = stages.device_orders
    return mock.patch.object(objective, "device_orders", lambda problem: whole(problem, 1))


def tasks_and_nodes(problem, assigned):
    """The sets that the local search moves, without those at borders."""
    yield from (tuple(members) for _, members in stages.asap(problem, assigned))
    yield from ((i,) for i in range(problem.n))


def plain_scorer(problem, goal, smooth=False):
    return objective.Scorer(problem, goal)


class NoMessages:
    """What stands for message passing: no bound, and the assignments there were."""

    def __init__(self, problem, prices):
        self.bound, self.met = 0.0, [starts.single_device(problem, 0)]

    def run(self, passes):
        """Pass nothing."""


LEFT_OUT = {
    "nothing": contextlib.nullcontext,
    "local search": patched(Search, "_improved", lambda self, ranked: ranked[:1]),
    "annealing": patched(Search, "_anneal", lambda self: None),
    "alternatives that explain lists": patched(Search, "_revise", lambda self: None),
    "message passing": patched(search, "Messages", NoMessages),
    "bounds that end the search": patched(Search, "_proven", lambda self, best: False),
    "the A* for fewest launches": no_rules("fewest_launches"),
    "tasks by critical path": no_rules("critical_path_first"),
    "device orders but the first": one_order,
    "rounded throughput": patched(search, "Scorer", plain_scorer),
    "balanced start": no_starts("balanced"),
    "dynamic programme's start": no_starts("dynamic programme"),
    "start at each node's fastest": no_starts("each node at its fastest"),
    "every assignment of few": patched(search, "_ALL", 0),
    "moves at borders": patched(search, "_sets", tasks_and_nodes),
}
ONLY = {"message passing": ("serial",), "rounded throughput": ("throughput",)}
"""Objectives of a mechanism, where not all have it."""
NOT_SERIAL = {"tasks by critical path", "balanced start"}
GOALS = ("makespan", "serial", "throughput")


@functools.cache
def zoo_pairs():
    """(name, problem) of every zoo model on every described machine that can run it."""
    found = []
    for path in sorted(zoo_folder().glob("*.tflite")):
        graph = optimise(convert(path))
        for machine in soc_names():
            costs = CostModel(load_soc(machine).devices(), Calibration())
            found.append((f"{path.stem} on {machine}", Pricing.of(graph, costs).problem))
    return found


def one(job):
    """Search one case with one mechanism left out."""
    left_out, goal, number, on_zoo = job
    name, problem = zoo_pairs()[number] if on_zoo else case(number, 200)
    with LEFT_OUT[left_out]():
        start = time.process_time()
        found = Search(problem, goal)
        spent = time.process_time() - start
    return {"left_out": left_out, "goal": goal, "case": name, "value": found.value, "cpu_s": spent}


def jobs(count, goals, on_zoo):
    for left_out in LEFT_OUT:
        for goal in goals:
            if goal not in ONLY.get(left_out, GOALS):
                continue
            if goal == "serial" and left_out in NOT_SERIAL:
                continue
            yield from ((left_out, goal, number, on_zoo) for number in range(count))


def table(rows):
    """Print the mean and the largest growth of the score and the CPU time, by mechanism."""
    by = collections.defaultdict(dict)
    for row in rows:
        by[row["left_out"], row["goal"]][row["case"]] = row
    print(f"{'left out':34s} goal       cases    mean     max  worse  CPU time")
    for (left_out, goal), mine in by.items():
        whole = by["nothing", goal]
        both = [name for name in mine if name in whole]
        grew = [mine[n]["value"] / whole[n]["value"] - 1 for n in both if whole[n]["value"]]
        spent = sum(mine[n]["cpu_s"] for n in both) / sum(whole[n]["cpu_s"] for n in both)
        worse = sum(one > 1e-9 for one in grew)
        mean, most = math.fsum(grew) / len(grew), max(grew)
        named = f"{left_out:34s} {goal:10s}"
        print(f"{named} {len(both):5d} {mean:7.3%} {most:7.2%} {worse:6d} {spent:9.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--zoo", action="store_true")
    parser.add_argument("--goals", default=",".join(GOALS))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.out.open()] if args.out.exists() else []
    if not args.table:
        count = len(zoo_pairs()) if args.zoo else CASES
        wanted = list(jobs(count, args.goals.split(","), args.zoo))
        with multiprocessing.Pool(args.processes) as pool, args.out.open("a") as out:
            for row in pool.imap(one, wanted[len(rows) :], chunksize=4):
                out.write(json.dumps(row) + "\n")
                out.flush()
                rows.append(row)
    table(rows)


if __name__ == "__main__":
    os.nice(10)
    main()
