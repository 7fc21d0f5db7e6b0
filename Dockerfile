# docker build .                                     the CPU image
# docker build --build-arg TORCH=torch==2.13.0 .     the GPU image
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
