"""The plan: file + environment + flags -> one frozen Plan; strict; all faults at once."""

from infersiege.plan.load import load_plan, plan_from_json, plan_hash, plan_json, resolve
from infersiege.plan.load_schema import Load
from infersiege.plan.schema import Channel, Plan, Slo, Workload

__all__ = [
    "Channel",
    "Load",
    "Plan",
    "Slo",
    "Workload",
    "load_plan",
    "plan_from_json",
    "plan_hash",
    "plan_json",
    "resolve",
]
