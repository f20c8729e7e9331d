"""A server of one model, as a program: `python -m lab.stress.slow_server MODEL QUEUE`.

MODEL is a file, a folder that is looked at again and again, or the seconds that a run sleeps. The
program prints its port and serves until a signal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType
from trireme.runtime.session.session import Session
from trireme.serving.admission import ServingLimits
from trireme.serving.config import ModelSettings
from trireme.serving.models import FixedModels, Models, SessionModel
from trireme.serving.opening import open_model
from trireme.serving.repository import ModelRepository
from trireme.serving.server import Server
from trireme.support.dtypes import Array

NAME = "m"
SHAPE = (1, 64, 64, 3)
POLL_S = 0.2
SETTINGS = ModelSettings(threads=1)


class SleepingModel(SessionModel):
    """A model whose runs take a known time and no processor."""

    def __init__(self, session: Session, service_s: float) -> None:
        super().__init__(NAME, session)
        self.concurrency, self._service_s = 1, service_s

    def run(self, feeds: Mapping[str, Array], timeout_s: float | None = None) -> dict[str, Array]:
        """Sleep, then answer."""
        time.sleep(self._service_s)
        return super().run(feeds, timeout_s)


def small_graph() -> Graph:
    """Return y = relu(x) of a small picture."""
    b = GraphBuilder("small")
    return b.finish(b.add("relu", b.input("x", TensorType(SHAPE, "float32")), names=["y"]))


def main(model: str, queue: str) -> None:
    """Serve until a signal."""
    try:
        service_s = float(model)
    except ValueError:
        service_s = 0.0
    with ExitStack() as opened:
        models: Models
        if Path(model).is_dir():
            models = ModelRepository(model, partial(open_model, settings=SETTINGS), poll_s=POLL_S)
        else:
            session = opened.enter_context(Session(small_graph() if service_s else model))
            one = SleepingModel(session, service_s) if service_s else SessionModel(NAME, session)
            models = FixedModels([one])
        limits = ServingLimits(max_queue=int(queue))
        server = Server(models, http_port=0, limits=limits)
        print(server.http_port, flush=True)
        server.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
