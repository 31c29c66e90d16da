"""The secret that the master and the workers of a run share; `infersiege run` makes one for workers of its own.

Apart from rpc.py, which turns it into keys: importing that one brings Locust and patches the process.
"""

from infersiege.redact import SECRET_VARIABLE as SECRET_VARIABLE
