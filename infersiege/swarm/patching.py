"""Monkey-patching, in one place: Locust does it on import, so it has to come before everything that holds a socket."""

from __future__ import annotations


def patch() -> None:
    """Make the standard library cooperative. To be called before ssl or urllib3 is imported; again does nothing."""
    from gevent import monkey

    if not monkey.is_module_patched("socket"):
        monkey.patch_all()
