"""Open the model of a file as its settings say, and warm it: what a repository calls."""

from __future__ import annotations

import logging
from dataclasses import replace

from trireme.backend.registry import DEFAULT_DEVICE
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.serving.config import ModelSettings
from trireme.serving.layout import ModelFile
from trireme.serving.observed import ObservedModel
from trireme.serving.usage import Usage, facts_of
from trireme.serving.warm import warm_up
from trireme.support.errors import GraphError, RunError

_LOG = logging.getLogger(__name__)
COLD = (
    "%r serves without a run before, so its first answer takes longer: it does not take made-up "
    "sizes (%s); fix: shapes in its settings, or warm_up = false"
)


def open_model(
    file: ModelFile, settings: ModelSettings, usage: Usage | None = None
) -> ObservedModel:
    """Return the model of a file after one run on made-up inputs.

    A model of open shapes may refuse the made-up sizes. It serves all the same, with a warning.

    usage: counts the model's runs
    The file is read, not mapped, unless the settings say so: a mapped file that is overwritten in
    place ends the process.
    Errors: those of Session, and of a run; ModelFileError, for a dtype that the protocol lacks
    """
    session = Session(
        file.path,
        devices=settings.devices,
        threads=settings.threads,
        fallback=settings.fallback,
        contexts=settings.contexts,
        placement=settings.placement,
        shapes=settings.shapes or None,
        buckets=settings.buckets or None,
        execution_options=replace(ExecutionOptions(), mmap=settings.mmap),
    )
    usage = usage or Usage()
    try:
        session.prepare_fallbacks()
        if settings.warm_up:
            is_open = any(isinstance(dim, str) for one in session.inputs for dim in one.shape)
            symbols = session.graph.symbols if is_open else {}  # asking for a graph prepares it
            least = {name: bounds[0] for name, bounds in symbols.items()}
            try:
                warm_up(session.inputs, least, session.run)
            except (GraphError, RunError) as error:
                if not is_open:
                    raise
                _LOG.warning(COLD, file.name, error.summary)
            if not session.is_stored:  # which has no states
                session.reset()
        facts = facts_of(session, settings.devices or (DEFAULT_DEVICE,))
        usage.add_load(session, facts)
        return ObservedModel(file.name, session, str(file.version), facts, usage, settings)
    except BaseException:
        session.close()
        raise
