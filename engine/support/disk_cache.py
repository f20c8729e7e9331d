"""Cache files in a private folder; each file starts with the SHA-256 of its bytes.

Callers trust these bytes: they link object code, run binaries and follow offsets. So the folder has
mode 0700, and this user owns the folder and every file. The hash finds damage; it is no signature.
A file that fails a check counts as absent and is removed. A full or read-only disk is no error: the
cache then stores nothing and warns once.

Processes take no lock of each other: each entry is written whole beside its place and renamed, so
two writers of an entry leave the one or the other.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from trireme.support.atomic import remove_abandoned, replace_file
from trireme.support.cache_events import count_cache_event
from trireme.support.records import dataclass

_log = logging.getLogger(__name__)
MOST_BYTES = 1 << 30
"""Of the files of one suffix in a folder."""
_DIGEST_BYTES = 32
_PRIVATE = 0o700
_PERMISSIONS = 0o777
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclass
class _Stored:
    """The files and bytes that this process stored in a folder since it pruned the folder."""

    files: int = 0
    nbytes: int = 0
    has_pruned: bool = False


@functools.cache
def _stored_in(folder: Path, suffix: str, process: int) -> _Stored:
    """The count of a folder, which all caches of the process share: a full folder takes 0.14 s to
    prune, and every session opens a cache. A forked child counts for itself.
    """
    return _Stored()


class DiskCache:
    """Bytes by key, in files of one suffix in a folder.

    Beyond `most` files or `most_bytes`, the least recently used go.
    folder: made with mode 0700; None stores nothing
    """

    def __init__(
        self, folder: Path | None, suffix: str, most: int, most_bytes: int = MOST_BYTES
    ) -> None:
        self._folder = None if folder is None or untrusted_reason(folder) else folder
        self._suffix, self._most, self._most_bytes = suffix, most, most_bytes

    def load(self, key: str) -> bytes | None:
        """Return the bytes stored under the key, None when they are absent or damaged."""
        if self._folder is None:
            return None
        found = self._load(self._folder, key)
        count_cache_event(self._suffix, "miss" if found is None else "hit")
        return found

    def _load(self, folder: Path, key: str) -> bytes | None:
        path = self._path(folder, key)
        try:
            data = _read_own(path)
        except OSError:
            return None
        if data is not None and _digest(data[_DIGEST_BYTES:]) == data[:_DIGEST_BYTES]:
            with contextlib.suppress(OSError):
                os.utime(path)  # pruning removes the oldest
            return data[_DIGEST_BYTES:]
        self._refuse(key, damaged=data is not None)
        return None

    def store(self, key: str, data: bytes) -> None:
        """Store bytes, whole or not at all."""
        self._write(key, [_digest(data), data])

    def _write(self, key: str, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a file; where that fails, warn once and store nothing more."""
        if self._folder is None:
            return
        try:
            replace_file(self._path(self._folder, key), pieces)
        except OSError as error:
            warn_once(f"nothing is cached in {self._folder}: {error.strerror}")
            count_cache_event(self._suffix, "unwritable")
            self._folder = None
            return
        self._prune_at_times(sum(map(len, pieces)))

    def remove(self, key: str) -> None:
        """Remove the bytes stored under the key, if there are any."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._path(self._folder, key).unlink()

    def _refuse(self, key: str, damaged: bool) -> None:
        """Remove a file that failed a check, with a warning."""
        if self._folder is not None:
            what = "a damaged file" if damaged else "a file of another user"
            path = self._path(self._folder, key)
            count_cache_event(self._suffix, "damaged" if damaged else "foreign")
            _log.warning("%s was removed from the cache: %s", what, path)
            self.remove(key)

    def _prune_at_times(self, nbytes: int) -> None:
        """Prune behind the first file that this process stores in the folder, and whenever it has
        stored a sixteenth of a limit.
        """
        if self._folder is None:
            return
        stored = _stored_in(self._folder, self._suffix, os.getpid())
        stored.files, stored.nbytes = stored.files + 1, stored.nbytes + nbytes
        is_due = stored.files > self._most // 16 or stored.nbytes > self._most_bytes // 16
        if is_due or not stored.has_pruned:
            stored.files, stored.nbytes, stored.has_pruned = 0, 0, True
            remove_abandoned(self._folder)
            _prune(self._folder, self._suffix, self._most, self._most_bytes)

    def _path(self, folder: Path, key: str) -> Path:
        return folder / f"{key}{self._suffix}"


def untrusted_reason(folder: Path) -> str:
    """Make a folder with mode 0700; return why its files are not trusted, "" where they are.

    The first call with a reason also logs the reason.
    """
    try:
        folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        reason = _exposure(folder.stat())
    except (OSError, ValueError) as error:  # a zero byte in the name is a ValueError
        reason = str(error.strerror if isinstance(error, OSError) else error)
    if reason:
        warn_once(f"nothing is cached in {folder}: {reason}")
    return reason


def _exposure(status: os.stat_result) -> str:
    """Return how other users can reach a folder, "" where they cannot."""
    if not hasattr(os, "getuid"):
        return ""  # this system has no such modes
    if status.st_uid != os.getuid():
        return "it belongs to another user"
    mode = status.st_mode & _PERMISSIONS
    return "" if mode == _PRIVATE else f"its mode is {mode:o}, expected {_PRIVATE:o}"


def open_own(path: Path) -> io.BufferedReader | None:
    """Open a plain file that this user owns and alone can write; None for any other.

    The checks read the open file, so nobody can swap the file in between. Errors: OSError
    """
    handle = os.open(path, _OPEN_FLAGS)
    try:
        status = os.fstat(handle)
        own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
        if own and stat.S_ISREG(status.st_mode) and not status.st_mode & 0o022:
            file, handle = open(handle, "rb"), -1  # noqa: SIM115 - the caller closes it
            return file
        return None
    finally:
        if handle >= 0:
            os.close(handle)


def _read_own(path: Path) -> bytes | None:
    """Return the bytes of a file of this user, None for any other. Errors: OSError"""
    file = open_own(path)
    if file is None:
        return None
    with file:
        return file.read()


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@functools.cache
def warn_once(sentence: str) -> None:
    """Log a sentence the first time."""
    _log.warning("%s", sentence)


def _prune(folder: Path, suffix: str, most: int, most_bytes: int) -> None:
    """Remove the files unused for longest beyond `most`, or beyond `most_bytes` of all.

    The newest stays, whatever its size. Other processes may remove files meanwhile.
    """
    seen = []
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for file in found:
            if file.name.endswith(suffix) and not file.name.startswith("."):
                with contextlib.suppress(OSError):
                    seen.append((file.stat(follow_symlinks=False), file.name))
    total = 0
    for number, (status, name) in enumerate(sorted(seen, key=_last_use, reverse=True)):
        total += status.st_size
        if number >= most or (total > most_bytes and number):
            with contextlib.suppress(OSError):
                os.unlink(folder / name)


def _last_use(file: tuple[os.stat_result, str]) -> tuple[float, str]:
    return file[0].st_mtime, file[1]
