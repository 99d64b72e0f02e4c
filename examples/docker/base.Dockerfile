# The gate, in an image whose own Python has torch 2.11 or later (a vendor's PyTorch image, say):
#
#   docker build -f examples/docker/base.Dockerfile --build-arg IMAGE=... -t amp-gate .
#   docker run --rm --gpus all -v "$PWD/amp-report:/report" amp-gate
#
# Pin IMAGE by its digest: it decides torch, CUDA and, with the host's driver, what is being checked.
ARG IMAGE
FROM ${IMAGE}

COPY . /src/amp-checks

# The constraint keeps pip from replacing the image's torch, whose version may be one that no index has. Such images cap
# versions by PIP_CONSTRAINT too, for packages that are not installed here.
RUN python3 -c "import torch; print(f'torch=={torch.__version__}')" > /src/torch.txt \
 && PIP_CONSTRAINT= PIP_BREAK_SYSTEM_PACKAGES=1 \
    python3 -m pip install --no-cache-dir -c /src/torch.txt "/src/amp-checks[xdist,report]" \
 && amp-checks env

# A report outlives the container; /dev/shm needs no --shm-size, for nothing here loads data in other processes.
VOLUME /report
WORKDIR /report
ENTRYPOINT ["amp-checks"]
CMD ["run", "--require-cuda", "-n", "auto", "--report-dir", "/report"]
