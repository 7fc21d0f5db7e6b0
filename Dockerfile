# docker build .                                     the CPU image
# docker build --build-arg TORCH=torch==2.13.0 .     the GPU image; PACKAGES="accelerate kernels" and
#                                                    DEBIAN_PACKAGES="gcc libc6-dev" for gpt-oss in 4 bits
# docker build --build-arg NATIVE=yes .              with the engine's products of few rows, for CPUs with AMX
# docker build --target api .                        without torch, for engines that run elsewhere
# docker build --target runner .                     the code runner; --build-arg PACKAGES="numpy pandas" for its code
# docker build --build-arg PYTHON_IMAGE=python:3.11-slim@sha256:…     on an image of Python that cannot change
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE} AS runner

ARG PACKAGES=
RUN apt-get update && apt-get install --yes --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10002 runner
WORKDIR /app
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt mcp hypercorn ${PACKAGES}
COPY tool_servers ./tool_servers

USER runner
EXPOSE 8100
HEALTHCHECK CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8100/health', timeout=3)"]
ENTRYPOINT ["python", "-m", "tool_servers.runner", "--host", "0.0.0.0", "--python", "/usr/local/bin/python3"]

# The environments of the server's images are made in stages of their own, whose caches and tools stay behind.
FROM ${PYTHON_IMAGE} AS environment

RUN apt-get update && apt-get install --yes --no-install-recommends binutils && rm -rf /var/lib/apt/lists/*
RUN python -m venv --without-pip /opt/holdfast
ENV PIP_PYTHON=/opt/holdfast/bin/python PIP_CONSTRAINT=/app/constraints.txt PIP_NO_CACHE_DIR=1
WORKDIR /app
COPY constraints.txt ./
COPY deploy/trim-packages.sh ./deploy/

FROM environment AS api-packages

COPY engine ./engine
COPY server ./server
COPY tool_servers ./tool_servers
COPY migrations ./migrations
COPY demo/holdfast-demo ./demo/holdfast-demo
COPY deploy/server ./deploy/server
RUN pip install --no-compile ./deploy/server && sh deploy/trim-packages.sh /opt/holdfast

FROM environment AS server-packages

ARG TORCH=torch==2.13.0+cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG PACKAGES=
# The build for CPUs is on an index of its own, from which torch alone is taken: of two indexes together pip takes
# whichever has the newer release of any package.
RUN pip install --no-compile ${TORCH} ${PACKAGES} \
    || (pip install --no-compile --no-deps --index-url ${TORCH_INDEX} ${TORCH} \
        && pip install --no-compile ${TORCH} ${PACKAGES})
COPY pyproject.toml README.md LICENSE ./
COPY engine ./engine
COPY server ./server
COPY tool_servers ./tool_servers
COPY migrations ./migrations
COPY demo/holdfast-demo ./demo/holdfast-demo
ARG NATIVE=
COPY native ./native
RUN test -z "${NATIVE}" || (apt-get update && apt-get install --yes --no-install-recommends g++ \
    && pip install --no-compile ./native)
RUN pip install --no-compile . && sh deploy/trim-packages.sh /opt/holdfast
# Loads the demo model, which nothing that was removed may hinder, and compiles what that imports.
RUN cd / && /opt/holdfast/bin/holdfast doctor

FROM ${PYTHON_IMAGE} AS api

RUN useradd --create-home --uid 10001 holdfast && install --directory --owner=holdfast --mode=700 /var/lib/holdfast
COPY --from=api-packages /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH HOLDFAST_HOST=0.0.0.0

USER holdfast
WORKDIR /home/holdfast
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ.get('HOLDFAST_PORT') or 8000}/health/ready\", timeout=3)"]
ENTRYPOINT ["holdfast"]
CMD ["serve"]

FROM ${PYTHON_IMAGE} AS server

ARG DEBIAN_PACKAGES=
RUN test -z "${DEBIAN_PACKAGES}" || (apt-get update \
    && apt-get install --yes --no-install-recommends ${DEBIAN_PACKAGES} && rm -rf /var/lib/apt/lists/*)
RUN useradd --create-home --uid 10001 holdfast && install --directory --owner=holdfast --mode=700 /var/lib/holdfast
COPY --from=server-packages /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH HOLDFAST_HOST=0.0.0.0

USER holdfast
WORKDIR /home/holdfast
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ.get('HOLDFAST_PORT') or 8000}/health/ready\", timeout=3)"]
ENTRYPOINT ["holdfast"]
CMD ["serve"]
