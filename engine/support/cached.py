"""Properties that are computed once, without a lock.

Up to Python 3.11 `functools.cached_property` holds one lock for all objects of a class while it
computes. A forked child waits for ever for a lock that a thread of its parent held, and two models
would wait for each other. As in later versions, threads that ask at once may each compute; all get
the first result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functools import cached_property as cached_property  # a type checker knows what it does
else:

    class cached_property:  # noqa: N801
        """A method whose result becomes an attribute of the object."""

        def __init__(self, func):
            self.func, self.__doc__, self._name = func, func.__doc__, func.__name__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.__dict__.setdefault(self._name, self.func(instance))
