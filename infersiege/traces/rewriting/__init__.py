"""Traces made of traces."""
