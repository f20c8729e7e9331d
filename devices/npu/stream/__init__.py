"""The command stream: its commands, their bytes, and the checks before it runs."""
