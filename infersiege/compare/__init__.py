"""Runs side by side: one table over engines or versions, how sure each difference is, and what makes it unfair.

Reads run directories and writes nothing into them (docs/compare.md).
"""
