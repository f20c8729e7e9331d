"""Python functions become graphs: by their calls (`trace`), or by their source (`capture`)."""
