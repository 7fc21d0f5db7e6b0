# docker build .                                     the CPU image
# docker build --build-arg TORCH=torch==2.13.0 .     the GPU image
# docker build --target api .                        without torch, for engines that run elsewhere; at most 300 MB
# docker build --target runner .                     the code runner; --build-arg PACKAGES="numpy pandas" for its code
FROM python:3.11-slim AS runner

ARG PACKAGES=
RUN apt-get update && apt-get install --yes --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10002 runner
WORKDIR /app
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt mcp hypercorn ${PACKAGES}
COPY runner ./runner

USER runner
EXPOSE 8100
HEALTHCHECK CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8100/health', timeout=3)"]
ENTRYPOINT ["python", "-m", "runner", "--host", "0.0.0.0", "--python", "/usr/local/bin/python3"]

FROM python:3.11-slim AS api-packages

RUN apt-get update && apt-get install --yes --no-install-recommends binutils && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY constraints.txt ./
COPY engine ./engine
COPY server ./server
COPY runner ./runner
COPY migrations ./migrations
COPY demo/holdfast-demo ./demo/holdfast-demo
COPY deploy/server ./deploy/server
RUN python -m venv --without-pip /opt/holdfast \
    && pip --python /opt/holdfast/bin/python install --no-cache-dir --constraint constraints.txt ./deploy/server
# Symbol tables, tests of packages, and the Hub's downloader are a fifth of the size and used by nothing here. The
# libraries in *.libs were patched by auditwheel, after which strip may break them.
RUN find /opt/holdfast -name '*.so' -not -path '*.libs/*' -exec strip --strip-unneeded {} + \
    && find /opt/holdfast/lib -type d -name tests -prune -exec rm -r {} + \
    && rm -r /opt/holdfast/lib/python3.11/site-packages/hf_xet

FROM python:3.11-slim AS api

RUN useradd --create-home --uid 10001 holdfast
COPY --from=api-packages /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH HOLDFAST_HOST=0.0.0.0

USER holdfast
WORKDIR /home/holdfast
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health/ready', timeout=3)"]
ENTRYPOINT ["holdfast"]
CMD ["serve"]

FROM python:3.11-slim AS server

ARG TORCH=torch==2.13.0+cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

RUN useradd --create-home --uid 10001 holdfast
WORKDIR /app
COPY constraints.txt ./
# Without the index first: it has CPU builds only, which count as newer than the CUDA build of the same version.
RUN pip install --no-cache-dir --constraint constraints.txt ${TORCH} \
    || pip install --no-cache-dir --constraint constraints.txt --extra-index-url ${TORCH_INDEX} ${TORCH}
COPY pyproject.toml README.md LICENSE ./
COPY engine ./engine
COPY server ./server
COPY runner ./runner
COPY migrations ./migrations
COPY demo/holdfast-demo ./demo/holdfast-demo
RUN pip install --no-cache-dir --constraint constraints.txt .

USER holdfast
EXPOSE 8000
ENV HOLDFAST_HOST=0.0.0.0
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health/ready', timeout=3)"]
ENTRYPOINT ["holdfast"]
CMD ["serve"]
