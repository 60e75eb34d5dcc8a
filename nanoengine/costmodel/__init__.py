"""Bytes and seconds on paper: what a decode step must read, and how long that takes. Imports no torch."""
