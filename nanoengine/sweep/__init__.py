"""Measure: time decode steps over batch and history on any engine, and keep every sample."""
