"""Requests: runs that wait in a queue, have deadlines and can be cancelled."""
