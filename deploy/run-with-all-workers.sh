#!/bin/sh
# `infersiege run` for as many workers as compose started, so that `--scale worker=4` is all one has to say.
# Compose starts them before the master, and its name server has one address for each of them under their service's name.
# Arguments: those of `infersiege run`; an --expect-workers among them wins.
set -eu
workers=$(getent ahostsv4 "$WORKER_SERVICE" | cut -d ' ' -f 1 | sort -u | wc -l)
if [ "$workers" -eq 0 ]; then
    echo "note: $WORKER_SERVICE has no address here: waiting for $WORKERS worker(s), as WORKERS says" >&2
    workers=$WORKERS
fi
exec infersiege run --expect-workers "$workers" "$@"
