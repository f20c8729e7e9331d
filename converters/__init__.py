"""Converters: a model in another format comes in, a trireme Graph goes out."""

if not __name__.startswith("trireme"):
    raise ImportError("the folder converters/ is the package trireme.converters: import that")
