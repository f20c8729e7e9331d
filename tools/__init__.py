"""Command-line tools: the only code that prints."""

if not __name__.startswith("trireme"):
    raise ImportError("the folder tools/ is the package trireme.tools: import that")
