"""What GPUs and engines did under the load, per stage, and what limited it: pure functions of series and summary."""
