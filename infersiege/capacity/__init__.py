"""Searches over whole runs: the highest load at which a plan's rules hold, and sweeps over given loads and channels.

Each probe is an `infersiege run` of its own with a run directory of its own. What to probe next is a pure function of
what was probed before (`search`), so that a search that was stopped goes on where it was.
"""
