# What people run: demo, test, lint, docs, bench. `make` lists them, docs/inside/testing.md has the
# rest, which is in tools/more.mk. Needs Python >= 3.10 with pip and a C++20 compiler; what else is needed goes into
# .venv and build/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
JOBS ?= $(shell nproc)
NP ?= 2
BENCH_ARGS ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=
FRAMEWORK ?= torch
# Ranks wait for one another, so two pytest processes for each core keep these busy.
PYTEST_WORKERS ?= $(shell echo $$(($(JOBS) < 4 ? 2 * $(JOBS) : 8)))
export JOBS
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

BIN := $(CURDIR)/.venv/bin
TOOLS_BIN := $(CURDIR)/.venv-tools/bin
REPORTS := $(CURDIR)/build/reports
# Programs are started here, so that they see the installed package and not the source folder.
ELSEWHERE := $(CURDIR)/build/elsewhere
PACKAGE_SOURCES := $(shell find csrc harp_plugin/abi harp_plugin/src harp_plugin/CMakeLists.txt \
  lightcc _lightcc_torch.py CMakeLists.txt setup.py pyproject.toml \
  -type f -not -name '*.so' -not -name '*.pyc' 2>/dev/null)
RUN_CPP_TESTS = PATH="$(BIN):$$PATH" tools/run_cpp_tests.sh
# $(call RUN_PYTHON_TESTS,ENVIRONMENT,WORKERS,REPORT) [pytest options]
RUN_PYTHON_TESTS = ../../tools/run_python_tests.sh $(CURDIR)/$1/bin/pytest $2 $(REPORTS)/$3.xml \
  -c ../../pyproject.toml --rootdir ../.. $(PYTEST_ARGS)
PIP_INSTALL = pip install --quiet --disable-pip-version-check

.PHONY: help
help:  ## Lists these targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

.venv/.ready: tools/requirements-test.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python >= 3.10 is needed")'
	$(PYTHON) -m venv .venv
	.venv/bin/$(PIP_INSTALL) -r tools/requirements-test.txt
	touch $@

# From build/dev, whose C++ tests use the same objects: -O2 and lines for debuggers, where
# `pip install .` gives -O3 and link-time optimisation of HARP.
.venv/.installed: .venv/.ready $(PACKAGE_SOURCES)
	rm -rf .venv/.release build/lib.*  # Else what left the sources would go on being installed.
	PATH="$(BIN):$$PATH" cmake --preset dev -DLIGHTCC_PYTHON=ON -DPython_EXECUTABLE=$(BIN)/python \
	  -Dpybind11_DIR="$$($(BIN)/python -m pybind11 --cmakedir)" >/dev/null
	PATH="$(BIN):$$PATH" LIGHTCC_BUILD_DIR=$(CURDIR)/build/dev $(BIN)/pip install \
	  --disable-pip-version-check --no-build-isolation .
	mkdir -p $(ELSEWHERE) $(REPORTS)
	touch $@

# What users get; in the place of the above.
.venv/.release: .venv/.installed
	$(BIN)/pip install --disable-pip-version-check --force-reinstall --no-deps .
	touch $@

.venv/.demo: .venv/.installed tools/requirements-demo.txt
	.venv/bin/$(PIP_INSTALL) -r tools/requirements-demo.txt
	touch $@

# One environment for all tools that only read or pack the sources; a mark for what is in it.
.venv-tools/.%: tools/requirements-%.txt
	[[ -d .venv-tools ]] || $(PYTHON) -m venv .venv-tools
	.venv-tools/bin/$(PIP_INSTALL) -r $<
	touch $@

# Where the Python of PATH has what torch's demo needs, it runs the demo; else .venv does.
# FRAMEWORK=tensorflow: the same with Keras on TensorFlow, which is downloaded. Ranks train on GPUs
# where there are some that the framework can use; DEMO_ARGS=--no-cuda: on the CPU.
INSTALLED := $(if $(filter demo,$(MAKECMDGOALS)),$(shell cd / && $(PYTHON) -c \
  'import importlib.util as u, sys; all(map(u.find_spec, ("lightcc", "torch", "sklearn"))) and print(sys.executable)'))
DEMO_OF_torch = $(or $(INSTALLED),$(BIN)/python) examples/pytorch_compression.py
DEMO_OF_tensorflow = $(CURDIR)/.venv-tf/bin/python examples/keras_compression.py
DEMO = $(DEMO_OF_$(FRAMEWORK))
NEEDED_BY_DEMO_OF_torch = $(if $(INSTALLED),,.venv/.demo)
NEEDED_BY_DEMO_OF_tensorflow = .venv-tf/.installed
.PHONY: demo
demo: $(NEEDED_BY_DEMO_OF_$(FRAMEWORK))  ## Dense and int4 training on 2 x 2 ranks over an emulated link of 200 Mbit/s; FRAMEWORK=torch or tensorflow
	mkdir -p $(ELSEWHERE) && cd $(ELSEWHERE) && LIGHT_2D_ALLREDUCE=1 LIGHT_INTRA_SIZE=2 LIGHT_TOPK_THRESHOLD=16K \
	  LIGHT_TCP_RATE=12M KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 \
	  $(firstword $(DEMO)) -m lightcc.runner -np 4 --no-prefix $(firstword $(DEMO)) ../../$(lastword $(DEMO)) $(DEMO_ARGS)

# What `make test-all` runs has these labels and markers.
CPP_REST = slow
PYTHON_REST = netns or slow or extra
.PHONY: test
test: .venv/.installed  ## Installs lightcc into .venv and runs all tests that need neither root nor more packages
	$(RUN_CPP_TESTS) dev dev --label-exclude '$(CPP_REST)'
	cd $(ELSEWHERE) && $(call RUN_PYTHON_TESTS,.venv,$(PYTEST_WORKERS),pytest) \
	  -m 'not ($(PYTHON_REST))' ../../tests/python
	.venv/bin/python tools/check_skips.py --any-skip $(REPORTS)/dev.xml $(REPORTS)/pytest.xml

# Each of these takes one core, so they run beside one another; what takes all of them comes after.
LINTS = lint-types lint-files lint-cuda docs
.PHONY: lint
lint: .venv/.installed .venv-tools/.lint .venv-tools/.cuda .venv-tools/.docs  ## Formats, types, imports, documentation, clang-tidy; LINT_CHANGED=1: less of it
	$(MAKE) --no-print-directory --jobs $(JOBS) --output-sync=target $(LINTS)
	PATH="$(TOOLS_BIN):$$PATH" cmake --preset lint -DPython_EXECUTABLE=$(TOOLS_BIN)/python \
	  -Dpybind11_DIR="$$(.venv-tools/bin/python -m pybind11 --cmakedir)" >/dev/null
	PATH="$(TOOLS_BIN):$$PATH" tools/run_clang_tidy.sh

.PHONY: docs
docs: .venv-tools/.docs  ## Builds the site of the documentation into build/site; any warning fails
	NO_MKDOCS_2_WARNING=1 .venv-tools/bin/mkdocs --quiet build
	@echo "the site begins at build/site/index.html"

.PHONY: bench
bench: .venv/.release  ## All-reduce over sizes on NP ranks, or what BENCH_ARGS tell lightcc.bench
	cd $(ELSEWHERE) && $(BIN)/python -m lightcc.bench $(or $(BENCH_ARGS),allreduce -np $(NP))

include tools/more.mk
