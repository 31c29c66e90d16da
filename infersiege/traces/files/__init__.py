"""Trace files on disk: bytes, rows and their places, values with messages that say where."""
