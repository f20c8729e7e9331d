"""Write a file whole or not at all: temporary file beside it, rename, and fsync where asked.

A writer locks its temporary file, and the system ends the lock with the process. So an unlocked
temporary file is of a writer that was killed, and later writers remove it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path
from typing import Any

from trireme.support.errors import ModelFileError

_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None
"""None on Windows, which does not remove or rename open files."""
_SUFFIX = ".tmp"
_LONGEST_NAME = 200


def write_atomic(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write the pieces, in order, as the file's new contents, and have the disk hold them.

    A failure leaves the old file unchanged and no temporary file. The write follows a link and
    keeps the mode of an existing file.
    Errors: ModelFileError, with the message of the system
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            raise ModelFileError("cannot be written: it is not a regular file")
        remove_abandoned(target.parent, target.name)
        with _new_file(target, 0o666) as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(target.parent)
    except OSError as error:
        raise ModelFileError(f"cannot be written: {error.strerror or error}") from error


def replace_file(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file of mode 0600 whole, or leave the old one; a power failure may lose both.

    Errors: OSError
    """
    with _new_file(path, 0o600) as file:
        file.writelines(pieces)


def remove_abandoned(folder: Path, name: str = "") -> None:
    """Remove temporary files of killed writers: of the file with a name, of all files for ""."""
    start = f".{name[:_LONGEST_NAME]}."
    with contextlib.suppress(OSError):
        for found in os.listdir(folder):
            if found.endswith(_SUFFIX) and found.startswith(start if name else "."):
                with contextlib.suppress(OSError):
                    _remove_unlocked(folder / found)


@contextmanager
def _new_file(target: Path, mode: int) -> Iterator[BufferedWriter]:
    """Yield a file that becomes the target at the end of the block; an error leaves nothing.

    Errors: OSError
    """
    file, temporary = _locked_file(target, mode)
    try:
        with file:
            yield file
            file.flush()
            if _fcntl is not None:
                os.replace(temporary, target)  # while it is locked
        if _fcntl is None:
            os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _locked_file(target: Path, mode: int) -> tuple[BufferedWriter, Path]:
    """Return a new locked file beside the target. A remover may come before the lock: again."""
    while True:
        name = f".{target.name[:_LONGEST_NAME]}.{secrets.token_hex(8)}{_SUFFIX}"
        temporary = target.with_name(name)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        file = open(handle, "wb")  # noqa: SIM115 - the caller closes it
        if _is_locked_elsewhere(handle) or (_fcntl is not None and not os.fstat(handle).st_nlink):
            file.close()
            continue
        return file, temporary


def _is_locked_elsewhere(handle: int) -> bool:
    """Lock a file, where its system has locks; return whether another process holds the lock."""
    try:
        if _fcntl is not None:
            _fcntl.flock(handle, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    return False


def _remove_unlocked(path: Path) -> None:
    """Remove a file unless a process holds its lock, or could. Errors: OSError"""
    if _fcntl is None:
        path.unlink()
        return
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _fcntl.flock(handle, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Make the rename durable. EINVAL is ignored: some file systems cannot sync a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
