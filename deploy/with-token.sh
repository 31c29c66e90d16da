#!/bin/sh
# Entry point of both images: INFLUX_TOKEN from the file that INFLUX_TOKEN_FILE names, where it names one (a secret or a
# volume), then the command.
set -eu
if [ -n "${INFLUX_TOKEN_FILE:-}" ]; then
    if [ -n "${INFLUX_TOKEN:-}" ]; then
        echo "error: INFLUX_TOKEN and INFLUX_TOKEN_FILE are both set" >&2
        echo "hint: keep one of them" >&2
        exit 2
    fi
    if ! INFLUX_TOKEN=$(cat "$INFLUX_TOKEN_FILE" 2>/dev/null) || [ -z "$INFLUX_TOKEN" ]; then
        echo "error: INFLUX_TOKEN_FILE $INFLUX_TOKEN_FILE: no token can be read there" >&2
        echo "hint: with docker-compose.yml InfluxDB makes it at its first start (docs/compose.md)" >&2
        exit 2
    fi
    export INFLUX_TOKEN
fi
exec "$@"
