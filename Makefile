# `make demo` and `make test` do all set-up themselves, in .venv
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TORCHAO := .venv/torchao

.PHONY: demo test test-slow test-gpu quality docs clean help

help:
	@echo "make demo       generate text with the embedded pair, plain and speculative, side by side"
	@echo "make test       the test suite, without slow and GPU tests"
	@echo "make test-slow  the slow tests; make test-gpu those that need CUDA"
	@echo "make quality    formatter, linter and type checker"
	@echo "make docs       build the documentation, links checked"
	@echo "make clean      remove .venv and caches"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	touch $@

# In a folder that only its tests look into: transformers imports torchao wherever it is installed, which fills stderr
$(TORCHAO): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --target $@ --upgrade torchao
	touch $@

demo: $(READY)
	$(BIN)/hf-speculative generate

test: $(TORCHAO)
	$(BIN)/python -m pytest --numprocesses auto

test-slow: $(TORCHAO)
	$(BIN)/python -m pytest -m slow --numprocesses auto

test-gpu: $(TORCHAO)
	$(BIN)/python -m pytest -m gpu

quality: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache site
