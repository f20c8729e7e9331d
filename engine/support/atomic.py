"""Write a file whole or not at all: temporary file beside it, fsync, rename, fsync the folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from trireme.support.errors import ModelFileError


def write_atomic(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write the pieces, in order, as the file's new contents.

    A failure leaves the old file unchanged and no temporary file. The write follows a link and
    keeps the mode of an existing file.
    Errors: ModelFileError, with the message of the system
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            raise ModelFileError("cannot be written: it is not a regular file")
        temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.tmp")
        try:
            _write_new(temporary, target, pieces)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        raise ModelFileError(f"cannot be written: {error.strerror or error}") from error


def _write_new(temporary: Path, target: Path, pieces: Iterable[bytes | memoryview]) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with open(descriptor, "wb") as file:
        if target.exists():
            os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make the rename durable. EINVAL is ignored: some file systems cannot sync a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
