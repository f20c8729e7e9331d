"""Measure this machine: small networks, samples, transfer times, and fits."""
