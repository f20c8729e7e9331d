"""The exact model of a price: a sum over nodes, launches and copies (`exact_model`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trireme.placement.exact_model import Reads, TaskModel
from trireme.placement.prices import Prices
from trireme.placement.problem import Assignment, Problem
from trireme.placement.stages import Tasks

_UNITS = 20_000_000
"""Integer units of the known price."""


class PriceModel(TaskModel):
    """The price of a run; times only keep the tasks in an order in which they can run."""

    def __init__(
        self, problem: Problem, prices: Prices, known: Assignment, tasks: Tasks, least: float
    ) -> None:
        self.prices, self.cost = prices, list[Any]()
        super().__init__(problem, known, tasks, least, _UNITS, problem.n)
        for i, row in enumerate(self.on):
            self.cost += [self.units(prices.own[i][d]) * here for d, here in row.items()]
        self.add_copies()
        self.model.add(self.goal >= sum(self.cost))

    def value_of(self, assigned: Sequence[int], tasks: Tasks) -> float:
        """Return the price of the tasks of an assignment."""
        return self.prices.total(self.problem, assigned, tasks)

    def add_task(
        self, leader: int, device: int, leads: Any, members: Sequence[tuple[int, Any]]
    ) -> None:
        """Charge the task's launch, and let it take one step."""
        self.cost.append(self.units(self.prices.launch[device]) * leads)
        self.model.add(self.end[leader] >= self.start[leader] + 1).only_enforce_if(leads)

    def add_copy(
        self, value: int, maker: int, made: Mapping[int, Any], space: int, reads: Reads
    ) -> None:
        """Charge the copy from the space where the value is made."""
        nbytes = self.problem.nbytes[value]
        for source, here in made.items():
            if source != space:
                price = self.units(self.prices.copy_price(nbytes, source, space))
                self.cost.append(price * self.copied(here, reads))
