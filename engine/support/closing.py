"""What is closed in the end: `with` for everything that has a `close`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Gives a class with a `close` its `with` statement."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held; a second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
