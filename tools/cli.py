"""The command line: `trireme COMMAND ...`. Parses arguments, runs a command, maps errors to codes.

Exit codes: 0 ok, 1 comparison failed, 2 usage, 3 unsupported model, 4 bad file, 5 device error,
70 a fault of trireme itself, 130 interrupted.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from trireme.support import errors
from trireme.support.interrupts import EXIT_CODE, end_on_interrupt, raise_on_interrupt
from trireme.tools.completion import complete
from trireme.tools.parsed import refuse_unused, use_lock
from trireme.tools.parser import make_parser
from trireme.tools.streams import discard, flush_errors, prepare_streams, say, show_warnings

EXIT_FAULT = 70
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.ModelFileError, 4),
    (OSError, 4),
    (errors.DeviceError, 5),
    (errors.CompileError, 5),
    (errors.RunError, 2),
    (errors.InternalError, EXIT_FAULT),
    (errors.TriremeError, 3),
    (MemoryError, EXIT_FAULT),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; expected errors show no traceback."""
    try:
        raise_on_interrupt()
        prepare_streams()
        show_warnings()
        return _run(arguments)
    except KeyboardInterrupt:
        end_on_interrupt()  # a second one comes often
        say("interrupted")
        return EXIT_CODE
    finally:
        end_on_interrupt()
        flush_errors()


def _run(arguments: Sequence[str] | None) -> int:
    parser = make_parser()
    complete(parser)
    options = parser.parse_args(arguments)
    try:
        refuse_unused(options)
        use_lock(options)
        code = int(options.command(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # as of `| head`
        discard(sys.stdout)
        return 0
    except tuple(kind for kind, _ in EXIT_CODES) as error:
        say(_message(error))
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    except Exception as error:
        say(
            f"{traceback.format_exc()}This is a fault of trireme: {type(error).__name__}; "
            "please report it with the model"
        )
        return EXIT_FAULT


def _message(error: BaseException) -> str:
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return errors.shortened(f"{where}{error.strerror or error}")
    if isinstance(error, MemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
