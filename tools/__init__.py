"""Command-line tools: the only code that prints and reads the environment."""

if not __name__.startswith("trireme"):
    raise ImportError("the folder tools/ is the package trireme.tools: import that")
