"""Plans as programs, and what runs them: loops, shapes, states, control, calls, sessions."""
