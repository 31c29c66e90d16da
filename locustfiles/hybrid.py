"""A local engine and a cloud channel side by side, with plain Locust: three users here for one there.

TAOTOKEN_API_KEY=… locust -f locustfiles/hybrid.py --headless -u 8 -r 1 -t 60s --host http://127.0.0.1:8000/v1 \
    --model NAME

TAOTOKEN_BASE_URL and TAOTOKEN_MODEL choose another address and model of the cloud.
"""

import os

from infersiege.plan.schema import Channel, Workload
from infersiege.swarm.standalone import InferenceUser, install

install()


class Local(InferenceUser):
    weight = 3
    workload = Workload(scenario="short-qa local", trace="builtin:short-qa")


class Cloud(InferenceUser):
    weight = 1
    workload = Workload(scenario="short-qa cloud", trace="builtin:short-qa")
    channel = Channel(
        engine="taotoken",
        base_url=os.environ.get("TAOTOKEN_BASE_URL", "https://taotoken.net/api"),
        model=os.environ.get("TAOTOKEN_MODEL", "claude-sonnet-4-5"),
        api_key_env="TAOTOKEN_API_KEY",
    )
