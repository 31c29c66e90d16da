"""The secret that the master and the workers of a run share.

Apart from rpc.py, which turns it into keys: importing that one brings Locust and patches the process.
"""

SECRET_VARIABLE = "INFERSIEGE_SECRET"
"""Environment variable; `infersiege run` makes a new secret for the workers that it starts itself."""
