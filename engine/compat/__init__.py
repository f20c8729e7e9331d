"""Interfaces of other runtimes over the sessions of this one."""
