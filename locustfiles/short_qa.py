"""Short questions and answers, with plain Locust.

locust -f locustfiles/short_qa.py --headless -u 20 -r 2 -t 60s --host http://127.0.0.1:8000/v1 --model NAME
"""

from infersiege.plan.schema import Workload
from infersiege.swarm.standalone import InferenceUser, install

install()


class ShortQa(InferenceUser):
    workload = Workload(scenario="short-qa", trace="builtin:short-qa")
