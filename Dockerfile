# syntax=docker/dockerfile:1
# CUDA: docker build -t slm-lab:cuda .
# CPU:  docker build -t slm-lab --build-arg TORCH_INDEX=ADDRESS .
#       with the address of PyTorch's CPU builds, which its "Get started" page gives: a fifth of the size.
# Runs stay on your disk: docker run --rm -v "$PWD/data:/lab/data" slm-lab run ppo_cartpole.json ppo_cartpole train
FROM python:3.11-slim-bookworm

ARG TORCH_INDEX=""
ARG EXTRAS=mujoco,envpool,atari,search,remote,video

# g++ compiles the learning step; the others draw for --video without a display.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libegl1 libosmesa6 swig \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/slm-lab
COPY constraints.txt LICENSE README.md pyproject.toml ./
COPY .dstack .dstack
COPY slm_lab slm_lab
RUN if [ -n "$TORCH_INDEX" ]; then \
        pip install --no-cache-dir -c constraints.txt --index-url "$TORCH_INDEX" torch; \
    fi \
    && pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]"

RUN useradd --uid 1000 --create-home lab && mkdir /lab && chown lab /lab
USER 1000
WORKDIR /lab
ENTRYPOINT ["slm-lab"]
CMD ["run"]
