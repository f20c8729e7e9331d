"""A model of a session whose runs are counted, alone or in batches: what a repository opens."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trireme.plan.plan import Plan
from trireme.profiling.spans import TaskSpan
from trireme.runtime.calls.batch_statistics import BatchReport
from trireme.runtime.session.batcher import Batcher
from trireme.runtime.session.session import Session
from trireme.serving.config import ModelSettings
from trireme.serving.models import SessionModel
from trireme.serving.usage import SAMPLE_EVERY, FinishedRun, RunFacts, Usage, busy_of
from trireme.support.dtypes import Array
from trireme.support.errors import DeviceError, RunError


class ObservedModel(SessionModel):
    """A session under a name and a version, whose runs `usage` counts.

    With batches, requests of single rows run together, and a run is a batch.
    """

    def __init__(
        self,
        name: str,
        session: Session,
        version: str,
        facts: RunFacts,
        usage: Usage,
        settings: ModelSettings,
    ) -> None:
        super().__init__(name, session, version, labels=settings.labels or None)
        self.facts = facts
        self._usage = usage
        self._count = itertools.count()
        self._shares: dict[str, float] = dict.fromkeys(facts.devices[:1], 1.0)
        self._batcher: Batcher | None = None
        batching = settings.batching
        if batching.max_batch_size:
            self._batcher = Batcher(
                session,
                batching.max_batch_size,
                preferred=batching.preferred_batch_size,
                max_queue_delay_us=batching.max_queue_delay_us,
                max_queue=batching.max_queue,
                timeout_us=batching.timeout_us or None,
                workers=session.contexts,
                on_batch=self._add_batch,
            )
            self.concurrency = 2 * session.contexts * batching.max_batch_size
        self.settings = _shown(settings)

    def run(self, feeds: Mapping[str, Array], timeout_s: float | None = None) -> dict[str, Array]:
        """See ServedModel; one run in SAMPLE_EVERY is watched where there are several devices."""
        try:
            if self._batcher is not None:
                return self._batcher.run(feeds, timeout_s=timeout_s)
            if self._is_to_be_watched():
                found = self._watched_if_well(feeds)
                if found is not None:
                    return found
            began_s = time.perf_counter()
            outputs = super().run(feeds, timeout_s)
        except DeviceError as error:
            self._usage.add_fault(error)
            raise
        self._add(time.perf_counter() - began_s)
        return outputs

    def _is_to_be_watched(self) -> bool:
        if len(self.facts.devices) < 2 or next(self._count) % SAMPLE_EVERY:
            return False
        session = self.session  # a run that is watched does not go to other devices
        return not session.fails_over or not (session.devices_out or session.states.types)

    def _watched_if_well(self, feeds: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return the outputs of a run that is watched; None where a plain run is to follow."""
        try:
            plan = self._plan(feeds)
        except RunError:  # it runs in stages, and no one plan runs these feeds
            return None
        try:
            return self._watched(feeds, plan)[0]
        except DeviceError as error:
            if not self.session.fails_over:
                raise
            self._usage.add_fault(error)
            return None

    def run_traced(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], list[TaskSpan]]:
        """See ServedModel; with batches, the request runs alone."""
        try:
            return self._watched(feeds, self._plan(feeds))
        except DeviceError as error:
            self._usage.add_fault(error)
            raise

    def _plan(self, feeds: Mapping[str, Array]) -> Plan:
        return self.session.at(feeds).plan if self.session.has_open_shapes else self.session.plan

    def _watched(
        self, feeds: Mapping[str, Array], plan: Plan
    ) -> tuple[dict[str, Array], list[TaskSpan]]:
        began_s = time.perf_counter()
        outputs, spans = self.session.run_traced(feeds)
        took_s = time.perf_counter() - began_s
        busy_s = busy_of(plan, spans)
        self._shares = {device: seconds / took_s for device, seconds in busy_s.items()}
        self._add(took_s)
        return outputs, spans

    def _add(self, took_s: float, rows: int = 1) -> None:
        busy_s = {device: share * took_s for device, share in self._shares.items()}
        run = FinishedRun(self.name, self.version, self.facts, took_s, busy_s, rows)
        self._usage.add_run(run)

    def _add_batch(self, report: BatchReport) -> None:
        self._add(report.run_s, report.rows)

    def close(self) -> None:
        """Finish what the batcher holds, and close the session."""
        if self._batcher is not None:
            self._batcher.close()
        self.session.close()


def _shown(settings: ModelSettings) -> dict[str, Any]:
    """Return what the model's configuration shows of its settings, in Triton's words."""
    batching = settings.batching
    if not batching.max_batch_size:
        return {}
    dynamic: dict[str, Sequence[int] | int] = {
        "preferred_batch_size": list(batching.preferred_batch_size),
        "max_queue_delay_microseconds": batching.max_queue_delay_us,
    }
    return {"dynamic_batching": dynamic}
