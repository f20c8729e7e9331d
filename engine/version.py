"""The version of trireme; the distribution's metadata is read from here."""

__version__ = "0.1.0"
