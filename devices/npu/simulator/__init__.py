"""The machine: values and cycles of a command stream."""
