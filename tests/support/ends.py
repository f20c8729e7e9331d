"""See the Python code that runs because an object ends: an interrupt that comes there is lost."""

import gc
import sys
import threading
from contextlib import contextmanager

CALLBACKS = {"remove", "_remove", "_cb", "__call__"}
"""Of the dictionaries, sets, methods and finalizers of weak references."""


@contextmanager
def python_of_ends():
    """Yield the functions of weak references and the __del__ that this thread runs in the block.

    Threads of Python's own library are left out: it has a WeakSet of them.
    """
    called = []

    def profile(frame, event, _):
        code, names = frame.f_code, frame.f_locals
        is_of_end = code.co_name in CALLBACKS and "weakref" in code.co_filename
        if event != "call" or not (is_of_end or code.co_name == "__del__"):
            return
        if "selfref" not in names or names["selfref"]() is not threading._dangling:
            called.append((code.co_filename, code.co_qualname))

    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        yield called
    finally:
        sys.setprofile(None)
        gc.enable()
