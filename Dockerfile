# A server with OpenAI's API, on the CPU:  docker build -t hf-speculative . && docker run -p 8000:8000 hf-speculative
# Other models:  docker run -p 8000:8000 -v ~/.cache/huggingface:/models hf-speculative Qwen/Qwen3-0.6B --draft-model auto
ARG PYTHON=3.12
# For a GPU:  --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126, and `docker run --gpus all`
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

FROM python:${PYTHON}-slim AS build
ARG TORCH_INDEX
WORKDIR /source
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# torch first, which is large and changes rarely
COPY constraints.txt .
RUN pip install --constraint constraints.txt --index-url ${TORCH_INDEX} torch
COPY pyproject.toml README.md LICENSE ./
COPY hf_speculative hf_speculative
RUN pip wheel --no-deps --wheel-dir /wheels . \
    && pip install --constraint constraints.txt "$(ls /wheels/*.whl)[serving]"

FROM python:${PYTHON}-slim
# a compiler for our kernels and passes
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 server && mkdir /models && chown server /models
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 HF_HOME=/models
USER server
WORKDIR /home/server
VOLUME /models
EXPOSE 8000
# a large model takes minutes to load
HEALTHCHECK --start-period=300s --interval=30s --timeout=5s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
# `docker stop` sends SIGTERM: running requests end, then the server does
ENTRYPOINT ["hf-speculative", "serve", "--host", "0.0.0.0", "--port", "8000"]
