# infersiege with its agents: master, workers, emulator and every other command of `infersiege`.
#   docker build -t infersiege .
# The base is the Python that the tests run on. Both stages must have the same one: the environment is copied whole.
FROM python:3.11.14-slim-bookworm AS build
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY infersiege infersiege
COPY agents agents
# setuptools first, pinned: wheels are then built without a build environment of unknown versions.
RUN python -m pip install --no-cache-dir --disable-pip-version-check -c constraints.txt setuptools
RUN python -m pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation -w /wheels . ./agents
# Only wheels: there is no compiler here, and none is needed.
RUN python -m venv /opt/infersiege
RUN /opt/infersiege/bin/python -m pip install --no-cache-dir --disable-pip-version-check --only-binary :all: \
      -c constraints.txt /wheels/infersiege-*.whl /wheels/infersiege_agents-*.whl

FROM python:3.11.14-slim-bookworm
LABEL org.opencontainers.image.title="infersiege" \
      org.opencontainers.image.description="Distributed load testing for LLM inference, on Locust" \
      org.opencontainers.image.licenses="Apache-2.0"
# /data/runs: run directories. /spool: records and points on their way. Named volumes take over their owner.
RUN groupadd --gid 10001 infersiege \
    && useradd --uid 10001 --gid infersiege --no-create-home --home-dir /tmp --shell /usr/sbin/nologin infersiege \
    && install -d -o infersiege -g infersiege /data /data/runs /spool
COPY --from=build /opt/infersiege /opt/infersiege
COPY --chmod=755 deploy/with-token.sh /usr/local/bin/with-token
# numpy only makes small histograms here; its thread pool would take time from the event loop.
ENV PATH=/opt/infersiege/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OPENBLAS_NUM_THREADS=1 \
    INFERSIEGE_SPOOL=/spool \
    INFERSIEGE_TELEMETRY_SPOOL=/spool/telemetry
USER 10001:10001
WORKDIR /data
ENTRYPOINT ["with-token", "infersiege"]
CMD ["--help"]
