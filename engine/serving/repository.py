"""A folder of models that serve: versions, leases, and reloads that lose no request.

`reload` compares the folder with what serves. It opens and warms a changed or new version first,
and only then are new requests given that version; requests under way finish on the old one, which
the last of them closes. A version that does not load leaves the old one in service.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from trireme.serving.errors import ServingError, public_text
from trireme.serving.layout import FoundModels, ModelFile, find_models, named_models, stamp_of
from trireme.serving.models import ModelStatus, ServedModel, unknown_model
from trireme.serving.slots import ClosableModel, Hold, VersionSlot
from trireme.serving.versions import VersionPolicy
from trireme.support.closing import Closing
from trireme.support.errors import RunError, TriremeError

_LOG = logging.getLogger(__name__)

Open = Callable[[ModelFile], ClosableModel]
"""Opens and warms the model of a file; raises a TriremeError for one that does not serve."""


Source = str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | Callable[[], FoundModels]
"""A folder; places by name; or what finds the models."""


class ModelRepository(Closing):
    """The models of a folder, or of places by name, and the versions of them that serve.

    source: the folder, or by name a model's file or its folder of versions, or what finds models
    open_model: opens and warms the model of a file
    policies: which versions of a model serve, by its name; policy: of the others, the newest one
        when not given
    poll_s: seconds between looks at the folder; None looks only when `reload` is called
    Errors: ModelFileError, if the folder cannot be read or a place is missing
    """

    def __init__(
        self,
        source: Source,
        open_model: Open,
        *,
        policies: Mapping[str, VersionPolicy] | None = None,
        policy: VersionPolicy | None = None,
        poll_s: float | None = None,
    ) -> None:
        if poll_s is not None and not poll_s > 0:
            raise RunError(f"poll_s is {poll_s}, expected seconds above 0")
        self._look = _look_at(source)
        self._open, self._policies = open_model, dict(policies or {})
        self._policy = policy or VersionPolicy()
        self._lock = threading.Lock()
        self._changing = threading.RLock()
        self._slots: dict[str, dict[int, VersionSlot]] = {}
        self._table: dict[tuple[str, str], Hold] = {}
        self._unloaded: set[str] = set()
        self._refused: dict[str, str] = {}
        self._ended = threading.Event()
        self._closer = ThreadPoolExecutor(1, "trireme-close-model")
        self.reloads = 0
        try:
            self.reload()
        except BaseException:
            self.close()
            raise
        self._first = frozenset(self._slots)
        if poll_s is not None:
            threading.Thread(
                target=self._poll, args=(poll_s,), name="trireme-repository", daemon=True
            ).start()

    def lease(self, name: str, version: str = "") -> Lease:
        """Return a context manager that holds a version open, the newest ready one for "".

        Errors: on entry ServingError, not_found or unavailable
        """
        return Lease(self, name, version)

    def index(self) -> Sequence[ModelStatus]:
        """Return the state of every version, and every place of the folder that is refused."""
        with self._lock:
            rows = [slot.status for found in self._slots.values() for slot in found.values()]
            rows += [
                ModelStatus(place, "", "UNAVAILABLE", reason)
                for place, reason in self._refused.items()
            ]
        return sorted(rows, key=lambda row: (row.name, len(row.version), row.version))

    def is_ready(self) -> bool:
        """Return whether every model of the first look serves that nobody took away since."""
        with self._lock:
            wanted = (self._first & self._slots.keys()) - self._unloaded
            return all((name, "") in self._table for name in wanted)

    def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Load the model's versions now, failed ones too; loaded ones stay as they are.

        Errors: ServingError, not_found; unavailable with the reason, if no version loads;
        invalid, for any parameter
        """
        if parameters:
            raise ServingError("invalid", f"parameters: {min(parameters)!r:.100} is not supported")
        with self._changing:
            layout = self._look()
            if name not in layout.models:
                raise unknown_model(name)
            self._unloaded.discard(name)
            for slot in self._slots.get(name, {}).values():
                slot.failed = None
            self._update(name, layout.models[name])
            wrong = [one for one in self._slots[name].values() if one.failed is not None]
        if wrong:
            newest = max(wrong, key=lambda one: one.file.version)
            raise ServingError(
                "unavailable", f"version {newest.file.version} of '{name}': {newest.reason}"
            )

    def unload(self, name: str) -> None:
        """Take every version of a model out of service until `load`.

        Errors: ServingError not_found
        """
        with self._changing:
            if name not in self._slots:
                raise unknown_model(name)
            self._unloaded.add(name)
            for slot in self._slots[name].values():
                self._switch(slot, None, "unloaded on request")

    def reload(self) -> list[ModelStatus]:
        """Bring what serves up to date with the folder; return the rows of the index that changed.

        Errors: ModelFileError, if the folder cannot be read; then everything serves on
        """
        with self._changing:
            before = set(self.index())
            layout = self._look()
            for name in sorted({*self._slots, *layout.models}):
                if name not in self._unloaded:
                    self._update(name, layout.models.get(name, {}))
            with self._lock:
                self._refused = dict(layout.refused)
            self.reloads += 1
            return [row for row in self.index() if row not in before]

    def close(self) -> None:
        """Stop looking at the folder and close every model that no lease holds."""
        self._ended.set()
        with self._changing:
            for found in self._slots.values():
                for slot in found.values():
                    self._switch(slot, None, "the repository is closed")
        self._closer.shutdown()

    def _poll(self, poll_s: float) -> None:
        while not self._ended.wait(poll_s):
            try:
                for row in self.reload():
                    _LOG.info("%s version %s: %s %s", *vars(row).values())
            except TriremeError as error:
                _LOG.warning("the models serve on as they are: %s", error.summary)

    def _update(self, name: str, files: Mapping[int, ModelFile]) -> None:
        """Serve what the policy chooses of a model's versions."""
        slots = self._slots.setdefault(name, {})
        policy = self._policies.get(name, self._policy)
        for version, file in files.items():
            with self._lock:
                slots.setdefault(version, VersionSlot(file)).file = file
        served: set[int] = set()
        for version in policy.candidates(files):
            if len(served) < policy.most and self._serve(slots[version]):
                served.add(version)
        for version in sorted(slots):
            if version not in files:
                self._drop(name, version)
            elif version not in served and (slots[version].hold or not slots[version].failed):
                self._switch(slots[version], None, "not among the versions to serve")
        if not slots:
            del self._slots[name]

    def _serve(self, slot: VersionSlot) -> bool:
        """Make a version serve its current file; return whether it serves a file at all."""
        if slot.is_current or self._ended.is_set():
            return slot.hold is not None
        if slot.failed == slot.file.stamp:
            return slot.hold is not None
        slot.is_loading = True
        try:
            model = self._open(slot.file)
        except TriremeError as error:
            self._fail(slot, error.summary)
        except Exception as error:
            _LOG.exception("opening a model raised %s", type(error).__name__)
            self._fail(slot, f"{type(error).__name__}: {error}")
        else:
            self._settle(slot, model)
        finally:
            slot.is_loading = False
        return slot.hold is not None

    def _settle(self, slot: VersionSlot, model: ClosableModel) -> None:
        """Make a warm model serve, unless its file changed while it was opened."""
        if stamp_of(slot.file.path) != slot.file.stamp:
            model.close()
            self._fail(slot, "the file changed while it was read; the next look tries again")
            return
        self._switch(slot, Hold(model, slot.file.stamp), "")

    def _fail(self, slot: VersionSlot, reason: str) -> None:
        with self._lock:
            slot.failed, slot.reason = slot.file.stamp, public_text(reason)
        name, version = slot.file.name, slot.file.version
        _LOG.warning("version %d of %r does not load: %s", version, name, reason)

    def _drop(self, name: str, version: int) -> None:
        """Take a version out of service whose files are gone."""
        self._switch(self._slots[name][version], None, "its files are gone")
        with self._lock:
            del self._slots[name][version]

    def _switch(self, slot: VersionSlot, hold: Hold | None, reason: str) -> None:
        """Give new leases this model of a version, or none; close the old one when it is free."""
        with self._lock:
            old, slot.hold, slot.reason = slot.hold, hold, reason
            if hold is not None:
                slot.failed = None
            if old is not None:
                old.is_retired = True
                is_free = not old.leases
            self._tabulate(slot.file.name)
        if old is not None and is_free:
            self._close_model(old)

    def _tabulate(self, name: str) -> None:
        """Fill the table of leases for a model; the caller holds the lock."""
        slots = self._slots.get(name, {})
        ready = {version: slot.hold for version, slot in slots.items() if slot.hold is not None}
        for key in [one for one in self._table if one[0] == name]:
            del self._table[key]
        for version, hold in ready.items():
            self._table[name, str(version)] = hold
        if ready:
            self._table[name, ""] = ready[max(ready)]

    def _close_model(self, hold: Hold) -> None:
        """Close a model that nothing uses, on a thread that no request waits for."""
        try:
            self._closer.submit(hold.model.close)
        except RuntimeError:  # the repository is closed: this is its last request
            hold.model.close()

    def _acquire(self, name: str, version: str) -> Hold:
        with self._lock:
            hold = self._table.get((name, version))
            if hold is None:
                raise self._missing(name, version)
            hold.leases += 1
        return hold

    def _release(self, hold: Hold) -> None:
        with self._lock:
            hold.leases -= 1
            is_free = hold.is_retired and not hold.leases
        if is_free:
            self._close_model(hold)

    def _missing(self, name: str, version: str) -> ServingError:
        """Return why there is no lease; the caller holds the lock."""
        rows = [slot.status for slot in self._slots.get(name, {}).values()]
        mine = [row for row in rows if version in ("", row.version)]
        if not mine:
            return unknown_model(name, version)
        newest = max(mine, key=lambda row: int(row.version))
        what = f"version {newest.version} of " if version else ""
        told = newest.reason or "loading"
        return ServingError("unavailable", f"{what}model '{name}' is not ready: {told}")


def _look_at(source: Source) -> Callable[[], FoundModels]:
    """Return what finds the models of a source."""
    if isinstance(source, Mapping):
        return partial(named_models, dict(source))
    return source if callable(source) else partial(find_models, source)


class Lease:
    """Holds one version of a model open, from the `with` statement's begin to its end."""

    __slots__ = ("_hold", "_name", "_repository", "_version")

    def __init__(self, repository: ModelRepository, name: str, version: str) -> None:
        self._repository, self._name, self._version = repository, name, version

    def __enter__(self) -> ServedModel:
        self._hold = self._repository._acquire(self._name, self._version)
        return self._hold.model

    def __exit__(self, *raised: object) -> None:
        self._repository._release(self._hold)
