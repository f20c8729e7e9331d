"""A base class for objects with a `close`: it adds the `with` statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Adds the `with` statement to a class with a `close`."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
