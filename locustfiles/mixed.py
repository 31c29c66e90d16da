"""All three workloads at once, with plain Locust: of 10 users 7 ask short questions, 2 read documents, 1 is an agent.

locust -f locustfiles/mixed.py --headless -u 20 -r 2 -t 300s --host http://127.0.0.1:8000/v1 --model NAME
"""

from infersiege.plan.schema import Workload
from infersiege.swarm.standalone import InferenceUser, install

install()


class ShortQa(InferenceUser):
    weight = 7
    workload = Workload(scenario="short-qa", trace="builtin:short-qa")


class LongDocument(InferenceUser):
    weight = 2
    workload = Workload(scenario="long-document", trace="builtin:long-document")


class Agent(InferenceUser):
    weight = 1
    workload = Workload(scenario="agent", trace="builtin:agent", delay_scale=0.1)
