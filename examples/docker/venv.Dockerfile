# The gate, in a CUDA image with torch in a virtual environment:
#
#   docker build -f examples/docker/venv.Dockerfile -t amp-gate .
#   docker run --rm --gpus all -v "$PWD/amp-report:/report" amp-gate
#
# torch's wheel carries its own CUDA libraries; the image only has to let the host's driver in.
ARG IMAGE=nvidia/cuda:12.8.1-base-ubuntu24.04
FROM ${IMAGE}
ARG TORCH=2.13.0

RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*

# torch first, in a layer of its own: it is large and changes seldom.
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/python -m pip install --no-cache-dir "torch==${TORCH}"

COPY . /src/amp-checks
RUN /opt/venv/bin/python -m pip install --no-cache-dir "torch==${TORCH}" "/src/amp-checks[xdist,report]" \
 && /opt/venv/bin/amp-checks env

VOLUME /report
WORKDIR /report
ENTRYPOINT ["/opt/venv/bin/amp-checks"]
CMD ["run", "--require-cuda", "-n", "auto", "--report-dir", "/report"]
