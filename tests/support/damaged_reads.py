"""Read damaged model files: the child process of test_bad_files.

As a program, `python damaged_reads.py FORMAT SEED COUNT FIRST`, in bounded memory and time, with
seed files on standard input (mutations.py).
"""

import sys
import traceback

from bounded import try_cases
from mutations import damaged_cases, read_seeds

from trireme.ir.verify import check
from trireme.support.errors import InternalError, TriremeError


def reader(format: str):
    """The function that reads bytes of a format."""
    if format == "trm":
        from trireme.model_file import loads as read
    elif format == "tflite":
        from trireme.converters.tflite.walk import convert as read
    else:
        from trireme.converters.onnx import convert as read
    return read


def attempt_with(read):
    """Return what reads damaged bytes; a typed error may hide no other in its causes."""

    def attempt(data):
        try:
            check(read(data))
        except TriremeError as error:
            cause = error
            while cause is not None:
                if isinstance(cause, MemoryError | RecursionError | InternalError):
                    return f"untyped {traceback.format_exc()}"
                cause = cause.__cause__
            raise
        return "read"

    return attempt


def main(format, seed, count, first):
    read, seeds = reader(format), read_seeds()
    for data in seeds:
        read(data)
    try_cases(damaged_cases(format, seeds, int(seed), int(count)), attempt_with(read), int(first))


if __name__ == "__main__":
    main(*sys.argv[1:])
