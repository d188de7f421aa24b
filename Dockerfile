# An image for hy.Kubernetes: Python, Hopyard and the framework of the recipes.
#
#   docker build -t registry.example/train:1 .
#   docker build -t registry.example/train:1 --build-arg EXTRAS=tensorflow-cpu .
#   docker build -t registry.example/train:1 --build-arg INDEX=https://download.pytorch.org/whl/cu130 .   # PyTorch for GPUs
#
# PYTHON must be the minor version of the driver's Python; PyTorch's wheels for GPUs bring CUDA. A BASE of one's own needs
# that `python` on PATH, and a `pip` that may install there. Where INDEX lacks a version, PyPI's wheel is taken.
ARG PYTHON=3.11
ARG BASE=python:${PYTHON}-slim
FROM ${BASE}

ARG EXTRAS=torch
ARG INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /opt/hopyard
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN pip install --no-cache-dir --extra-index-url "${INDEX}" --constraint constraints.txt ".[${EXTRAS}]"

WORKDIR /tmp
USER 65532:65532
