"""Cache files in a private folder; each file starts with the SHA-256 of its bytes.

Callers trust these bytes: they link object code, run binaries and follow offsets. So the folder has
mode 0700, and this user owns the folder and every file. The hash finds damage; it is no signature.
A file that fails a check counts as absent and is removed. A full or read-only disk is no error: the
cache then stores nothing and warns once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import stat
import tempfile
from pathlib import Path

_log = logging.getLogger(__name__)
_DIGEST_BYTES = 32
_PRIVATE = 0o700
_PERMISSIONS = 0o777
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class DiskCache:
    """Bytes by key, in files of one suffix in a folder; beyond `most`, the least recently used go.

    folder: made with mode 0700; None stores nothing
    """

    def __init__(self, folder: Path | None, suffix: str, most: int) -> None:
        self._folder = None if folder is None or untrusted_reason(folder) else folder
        self._suffix = suffix
        if self._folder is not None:
            _prune(self._folder, suffix, most)

    def load(self, key: str) -> bytes | None:
        """Return the bytes stored under the key, None when they are absent or damaged."""
        if self._folder is None:
            return None
        path = self._path(self._folder, key)
        try:
            data = _read_own(path)
        except OSError:
            return None
        if data is not None and _digest(data[_DIGEST_BYTES:]) == data[:_DIGEST_BYTES]:
            with contextlib.suppress(OSError):
                os.utime(path)  # pruning removes the oldest
            return data[_DIGEST_BYTES:]
        what = "a file of another user" if data is None else "a damaged file"
        _log.warning("%s was removed from the cache: %s", what, path)
        self.remove(key)
        return None

    def store(self, key: str, data: bytes) -> None:
        """Store bytes, whole or not at all."""
        if self._folder is None:
            return
        try:
            _write_atomic(self._path(self._folder, key), _digest(data) + data)
        except OSError as error:
            _warn_once(f"nothing is cached in {self._folder}: {error.strerror}")
            self._folder = None

    def remove(self, key: str) -> None:
        """Remove the bytes stored under the key, if there are any."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._path(self._folder, key).unlink()

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
        _warn_once(f"nothing is cached in {folder}: {reason}")
    return reason


def _exposure(status: os.stat_result) -> str:
    """Return how other users can reach a folder, "" where they cannot."""
    if not hasattr(os, "getuid"):
        return ""  # this system has no such modes
    if status.st_uid != os.getuid():
        return "it belongs to another user"
    mode = status.st_mode & _PERMISSIONS
    return "" if mode == _PRIVATE else f"its mode is {mode:o}, expected {_PRIVATE:o}"


def _read_own(path: Path) -> bytes | None:
    """Return the bytes of a plain file that this user owns and alone can write, else None.

    The checks read the open file, so nobody can swap the file in between. Errors: OSError
    """
    with open(os.open(path, _OPEN_FLAGS), "rb") as file:
        status = os.fstat(file.fileno())
        own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
        if own and stat.S_ISREG(status.st_mode) and not status.st_mode & 0o022:
            return file.read()
    return None


def _write_atomic(path: Path, data: bytes) -> None:
    """Write a file whole, or leave nothing behind. Errors: OSError"""
    handle, name = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@functools.cache
def _warn_once(sentence: str) -> None:
    _log.warning("%s", sentence)


def _prune(folder: Path, suffix: str, most: int) -> None:
    """Remove the least recently used files beyond `most`."""
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(folder) if name.endswith(suffix)]
        if len(names) <= most:
            return  # without reading the time of each file
        files = sorted((os.stat(folder / name).st_mtime, name) for name in names)
        for _, name in files[: len(files) - most]:
            os.unlink(folder / name)
