"""Bound calls that note when they run, for tests of how a plan's tasks are dispatched."""

import functools
import random
import time
from dataclasses import replace

from placing import place_plain
from toy_graphs import devices, random_graph

from trireme.cost.model import CostModel
from trireme.plan.plan import make_plan
from trireme.support.errors import DeviceError


class Call:
    """A bound call that notes when it runs, takes a while, and refuses company on its device."""

    def __init__(self, plan, index, log, delays=lambda index: 0.0, fail=()):
        self.plan, self.index, self.log, self.delays, self.fail = plan, index, log, delays, fail
        self.busy = log.setdefault("busy", {}).setdefault(plan.tasks[index].device, [])

    def launch(self, profile=False):
        assert not self.busy, f"two tasks at once on {self.plan.tasks[self.index].device}"
        self.busy.append(self.index)
        for other in self.plan.tasks[self.index].waits:
            assert other in self.log["done"], f"{self.index} ran before {other}"
        if self.index in self.fail:
            self.busy.pop()
            raise DeviceError(f"task {self.index} was told to fail")
        if delay := self.delays(self.index):
            time.sleep(delay)
        return _Ending(self)


class _Ending:
    def __init__(self, call):
        self.call = call

    def wait(self):
        self.call.busy.pop()
        self.call.log["done"].append(self.call.index)

    def spans(self):
        return ()


@functools.cache
def planned(seed, nodes=40, execution="interactive"):
    """The plan of a random graph, every node pinned: nothing here is about the search."""
    graph = random_graph(random.Random(seed), nodes)
    pinned = (replace(node, pin=node.pin or "cpu") for node in graph.nodes)
    graph = replace(graph, nodes=tuple(pinned))
    return make_plan(place_plain(graph, CostModel(devices()), "serial"), "merged", execution)
