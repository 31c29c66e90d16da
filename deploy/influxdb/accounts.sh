#!/bin/sh
# Accounts of the bucket, beside InfluxDB's operator: the influxdb image runs this once, at its first start, from
# /docker-entrypoint-initdb.d. A failure ends that start: the image wipes the database, and the next start tries again.
#
# A token of 2.x can't be chosen, so the one for agents and runs goes into a file, on a volume that they mount too.
# The password of a 1.x account can: Grafana asks /query, which takes it. That account is not known to /api/v2.
set -eu

# What the image does not wipe: the command line's settings, without which it would refuse to set up a second time.
trap 'status=$?; [ "$status" -eq 0 ] || rm -f "$INFLUX_CONFIGS_PATH"; exit "$status"' EXIT

influx v1 auth create \
    --org "$DOCKER_INFLUXDB_INIT_ORG" \
    --description "Grafana: reads $DOCKER_INFLUXDB_INIT_BUCKET" \
    --username "$INFLUX_READ_USER" \
    --password "$INFLUX_READ_PASSWORD" \
    --read-bucket "$DOCKER_INFLUXDB_INIT_BUCKET_ID" >/dev/null

# Runs read too: at their end they fetch the series of all hosts.
made=$(influx auth create \
    --org "$DOCKER_INFLUXDB_INIT_ORG" \
    --description "agents and runs: write and read $DOCKER_INFLUXDB_INIT_BUCKET" \
    --write-bucket "$DOCKER_INFLUXDB_INIT_BUCKET_ID" \
    --read-bucket "$DOCKER_INFLUXDB_INIT_BUCKET_ID" \
    --json)
token=$(printf '%s\n' "$made" | sed -n 's/.*"token": *"\([^"]*\)".*/\1/p')
if [ -z "$token" ]; then
    echo "error: influx auth create: no token in its answer" >&2
    exit 1
fi
# Other users read it, in the containers that mount this volume read-only; nobody else sees it.
printf '%s\n' "$token" >"$INFLUX_TOKEN_FILE.new"
chmod 444 "$INFLUX_TOKEN_FILE.new"
mv -f "$INFLUX_TOKEN_FILE.new" "$INFLUX_TOKEN_FILE"
