"""What GPUs and engines did under the load, per stage, and what limited it: pure functions of series and summary."""

from infersiege.resources.series import Series
from infersiege.resources.stages import stages, thin, warnings
from infersiege.resources.watched import Watched, gather

__all__ = ["Series", "Watched", "gather", "stages", "thin", "warnings"]
