"""Measured runs beside their predictions: spans, profile, prediction error, trace."""
