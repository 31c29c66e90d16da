"""Locust master and workers as the engine of a run. The only package that imports locust.

Importing locust monkey-patches the process, so nothing here may be imported by commands that only read (gate, report).
"""
