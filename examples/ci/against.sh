#!/usr/bin/env bash
# Both versions of an engine in one job, their runs in turn: no stored baseline, and whatever drifts meets both alike.
# Runs as it is against two emulators; copy it to load/against.sh beside load/plan.toml. docs/ci.md says where it goes.
set -euo pipefail
port=${PORT:-8000} old_port=${OLD_PORT:-8001} runs=${RUNS:-5}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

infersiege emulate --port "$port" > engine.log 2>&1 &         # CHANGE: the engine of this change
infersiege emulate --port "$old_port" > engine-old.log 2>&1 & # CHANGE: the engine of main

# One plan twice, each with the address of its engine; all else has to be the same.
sed "s#//127.0.0.1:8000/#//127.0.0.1:$port/#" load/plan.toml > load/new.toml
sed "s#//127.0.0.1:8000/#//127.0.0.1:$old_port/#" load/plan.toml > load/old.toml

# 0 no worse, 1 worse (or a limit of the plan was passed), 3 invalid, 5 not comparable or too few runs (RUNS below 5).
infersiege run load/new.toml --against load/old.toml --repeats "$runs" --out results --gate --markdown verdict.md \
  --wait-for-target 60 ${OPTIONS:-}
