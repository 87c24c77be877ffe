# make demo   a small tour: three small language models merged, quantized and scored
# make test   everything that has to hold before a change goes in
# make parity the same work done by mergekit, transformers, llama.cpp and MLX, compared (installs torch, builds llama.cpp)
# make fuzz   ten minutes of changed files for every reader (SECONDS=600 SEED=1 TARGETS="config gguf")
# make mutants small mistakes in the sources, one at a time: does a test fail? (20 minutes the first time, then 6)
# make soak   half an hour of random jobs, killed, limited and side by side (SOAK="--minutes 5 --seed 2")
# make faults every system call of twenty commands fails, and the power at every point (5 minutes)
# make apple  instructions of all kernels compiled for Apple's processors, counted in an emulator (10 minutes)
# make arm64  tests on an emulated arm64 processor, and results compared with this one (Debian, 30 minutes)
# make bench  the benchmarks, against the same peers; writes docs/figures.md
# make docs   the documentation as a web site in site/
# make clean  remove what the others made

PYTHON ?= python3
TEST_WORKERS ?= 2

BIN := .venv/bin
BENCH_BIN := .venv-bench/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test parity fuzz mutants faults soak apple arm64 bench docs clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: .venv/.installed
	@$(BIN)/lbrx demo

test: .venv/.installed
	@echo "== ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted; run: $(BIN)/ruff format ."; exit 1; }
	@echo "== mypy for Linux and macOS"
	@$(BIN)/mypy --strict --platform darwin --cache-dir .mypy_cache/darwin & darwin=$$!; \
		$(BIN)/mypy --strict --platform linux --cache-dir .mypy_cache/linux; linux=$$?; \
		wait $$darwin && exit $$linux
	@echo "== tests and examples"
	@LBRX_REQUIRE_CLANG=1 $(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal --doctest-modules src/lbrx tests

parity: .venv-mergekit/.installed .venv-mlx/.installed .venv-quantized/.installed
	@.venv-mergekit/bin/python -m pytest -q parity
	@.venv-quantized/bin/python -m pytest -q parity/test_quantized_inputs.py parity/test_quantized_outputs.py
	@.venv-mlx/bin/python -m pytest -q parity/test_mlx.py

fuzz: .venv-fuzz/.installed
	@PYTHONPATH=. .venv-fuzz/bin/python -m fuzz --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED)) \
		$(foreach name,$(TARGETS),--target $(name))

mutants: .venv/.installed
	@$(BIN)/python -m mutants $(MUTANTS)
	@$(BIN)/python -m mutants.barriers

soak: .venv/.installed
	@$(BIN)/python -m soak $(SOAK)

faults: .venv/.installed
	@$(BIN)/python -m reliability --keep-going

apple: .venv/.installed
	@PYTHONPATH=src:. $(BIN)/python -m apple $(APPLE)

arm64: .venv/.installed
	@$(BIN)/python -m arm64 $(ARM64)

bench: .venv-bench/.installed .venv-mergekit/.installed .venv-mlx/.installed
	@$(BENCH_BIN)/python -m benchmarks $(SUITES)

# Without --quiet, which would hide warnings from --strict.
docs: .venv-docs/.installed
	@NO_MKDOCS_2_WARNING=1 PATH=$(CURDIR)/.venv-docs/bin:$$PATH .venv-docs/bin/mkdocs build --strict
	@echo "The site is in site/. To read it with search: python3 -m http.server -d site"

clean:
	@rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis .mutants build dist site demo-output
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment is made anew when pyproject.toml has changed, and is complete when its stamp is there.
.venv/.installed: pyproject.toml
	@$(MAKE) --no-print-directory environment DIRECTORY=.venv EXTRA=dev

.venv-bench/.installed: pyproject.toml
	@$(MAKE) --no-print-directory environment DIRECTORY=.venv-bench EXTRA=bench

# atheris has no packages for macOS; without it the mutations are not guided by coverage.
.venv-fuzz/.installed: pyproject.toml
	@$(MAKE) --no-print-directory environment DIRECTORY=.venv-fuzz EXTRA=remote
	@.venv-fuzz/bin/python $(PIP_INSTALL) atheris || echo "atheris cannot be installed; fuzzing without coverage"
	@touch .venv-fuzz/.installed

# mkdocs reads the sources without importing lbrx.
.venv-docs/.installed: pyproject.toml
	@echo "Installing mkdocs into .venv-docs"
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python $(PIP_INSTALL) -e '.[docs]'
	@touch .venv-docs/.installed

# The peers, in an environment of their own; torch comes first so that nothing else chooses its version.
.venv-mergekit/.installed: pyproject.toml
	@echo "Installing torch, transformers, mergekit and fusion-bench, and building llama.cpp, in .venv-mergekit: takes many minutes"
	@$(PYTHON) -m venv .venv-mergekit
	@.venv-mergekit/bin/python $(PIP_INSTALL) torch==2.13.0
	@.venv-mergekit/bin/python $(PIP_INSTALL) mergekit==0.1.5 llama-cpp-python==0.3.36 peft==0.21.2 sentencepiece lm_eval==0.4.13 fusion-bench==0.2.33 -e '.[dev]'
	@touch .venv-mergekit/.installed

# Libraries of quantized models. GPTQModel asks for a newer torch than the peers have, but runs with theirs.
.venv-quantized/.installed: pyproject.toml
	@echo "Installing torch, transformers, compressed-tensors, GPTQModel and AutoAWQ in .venv-quantized"
	@$(PYTHON) -m venv .venv-quantized
	@.venv-quantized/bin/python $(PIP_INSTALL) torch==2.13.0
	@.venv-quantized/bin/python $(PIP_INSTALL) transformers==5.23.0 accelerate compressed-tensors==0.20.0 -e '.[dev]'
	@.venv-quantized/bin/python $(PIP_INSTALL) device-smi pypcre tokenicer logbar defuser threadpoolctl datasets 'setuptools>=84'
	@.venv-quantized/bin/python $(PIP_INSTALL) --no-deps optimum==2.3.0 torchao==0.18.0 gptqmodel==7.7.0 autoawq==0.2.9
	@touch .venv-quantized/.installed

# MLX wants other versions of the same libraries than mergekit.
.venv-mlx/.installed: pyproject.toml
	@echo "Installing torch, transformers and MLX in .venv-mlx, which takes some minutes"
	@$(PYTHON) -m venv .venv-mlx
	@.venv-mlx/bin/python $(PIP_INSTALL) torch==2.13.0
	@.venv-mlx/bin/python $(PIP_INSTALL) 'mlx[cpu]' mlx-lm -e '.[dev]'
	@touch .venv-mlx/.installed

.PHONY: environment
environment:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "lbrx needs Python 3.11 or newer; $(PYTHON) is not. Run: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Installing lbrx into $(DIRECTORY), which takes a minute the first time"
	@$(PYTHON) -m venv $(DIRECTORY)
	@$(DIRECTORY)/bin/python $(PIP_INSTALL) -e '.[$(EXTRA)]'
	@touch $(DIRECTORY)/.installed
