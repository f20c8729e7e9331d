"""Where the kernels of a call note what they find wrong: two int64 for each of their faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trireme.support.errors import RunError


class FaultWords:
    """The words of some faults, in the order in which they are told.

    messages: of each fault, what makes the sentence of the number that a kernel notes
    words: by fault, a flag and the number
    """

    def __init__(self, messages: Sequence[Callable[[int], str]]) -> None:
        self._messages = messages
        self.words = np.zeros((len(messages), 2), np.int64)
        self._view = self.words.reshape(-1).data

    def __len__(self) -> int:
        return len(self._messages)

    def run(self, call: Callable[[], None]) -> None:
        """Run a call, and raise what its kernels found wrong; their results mean nothing then.

        Errors: RunError
        """
        try:
            call()
        except BaseException:
            self.clear()  # else the next run would tell what this one found
            raise
        self.check()

    def check(self) -> None:
        """Raise the first fault that is noted; forget all.

        Errors: RunError
        """
        if not any(self._view):
            return
        noted = self.words.tolist()
        self.clear()
        for message, (flag, number) in zip(self._messages, noted, strict=True):
            if flag:
                raise RunError(message(number))

    def clear(self) -> None:
        """Forget what is noted."""
        self.words[:] = 0
