"""Run the tasks of a program: one after another or as their waits allow, watched for hangs."""
