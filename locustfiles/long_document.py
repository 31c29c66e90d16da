"""Several questions about a long document, with plain Locust.

locust -f locustfiles/long_document.py --headless -u 4 -r 1 -t 120s --host http://127.0.0.1:8000/v1 --model NAME
"""

from infersiege.plan.schema import Workload
from infersiege.swarm.standalone import InferenceUser, install

install()


class LongDocument(InferenceUser):
    workload = Workload(scenario="long-document", trace="builtin:long-document")
