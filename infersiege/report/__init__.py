"""What people look at: tables, live progress, report.html. Everything is made from the run directory alone."""

from infersiege.report.rebuild import Rebuilt, finish, judged, read, rebuild, write

__all__ = ["Rebuilt", "finish", "judged", "read", "rebuild", "write"]
