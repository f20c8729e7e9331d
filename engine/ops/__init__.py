"""The ops trireme knows. Importing this package fills the registry, one family a module."""

from trireme.ops import elementwise

__all__ = ["elementwise"]
