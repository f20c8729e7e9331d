"""States of a session: outputs that the next run reads as inputs, and snapshots of all states."""
