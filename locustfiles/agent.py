"""Multi-turn agents with tools, with plain Locust. Delays are a tenth of what agents really take.

locust -f locustfiles/agent.py --headless -u 8 -r 1 -t 300s --host http://127.0.0.1:8000/v1 --model NAME
"""

from infersiege.plan.schema import Workload
from infersiege.swarm.standalone import InferenceUser, install

install()


class Agent(InferenceUser):
    workload = Workload(scenario="agent", trace="builtin:agent", delay_scale=0.1)
