"""Files kept in a private folder, each behind the SHA-256 of its bytes.

What is read from here is trusted (object code is linked, offsets are followed), so the folder must
be this user's alone, and a file whose hash does not fit counts as absent and is removed. A disk
that is full or cannot be written is no error: nothing is kept then.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
from pathlib import Path

_log = logging.getLogger(__name__)
_DIGEST_BYTES = 32


class DiskCache:
    """Bytes by key, in files of one suffix in a folder; the least used of over `most` are removed.

    folder: made with mode 0700; None to keep nothing
    """

    def __init__(self, folder: Path | None, suffix: str, most: int) -> None:
        self._folder = folder if folder is not None and _is_private(folder) else None
        self._suffix = suffix
        if self._folder is not None:
            _prune(self._folder, suffix, most)

    def load(self, key: str) -> bytes | None:
        """Return the bytes stored under the key, None when they are absent or damaged."""
        if self._folder is None:
            return None
        path = self._folder / f"{key}{self._suffix}"
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data[_DIGEST_BYTES:]).digest() == data[:_DIGEST_BYTES]:
            with contextlib.suppress(OSError):
                os.utime(path)  # the oldest are removed
            return data[_DIGEST_BYTES:]
        _log.warning("a damaged file was removed from the cache: %s", path)
        path.unlink(missing_ok=True)
        return None

    def store(self, key: str, data: bytes) -> None:
        """Store bytes, whole or not at all."""
        if self._folder is None:
            return
        try:
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(name, self._folder / f"{key}{self._suffix}")
        except OSError as error:
            _log.warning("nothing is cached: %s", error)


def _prune(folder: Path, suffix: str, most: int) -> None:
    """Remove the files that were not used for longest when there are too many."""
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(folder) if name.endswith(suffix)]
        if len(names) <= most:
            return  # without a look at each
        files = sorted((os.stat(folder / name).st_mtime, name) for name in names)
        for _, name in files[: len(files) - most]:
            os.unlink(folder / name)


def _is_private(folder: Path) -> bool:
    """Make the folder with mode 0700; whether it is ours alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        _log.warning("nothing is cached: %s", error)
        return False
    ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    if ours and not stat.S_IMODE(status.st_mode) & 0o022:
        return True
    _log.warning("nothing is cached: %s can be written by others", folder)
    return False
