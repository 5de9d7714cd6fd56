# Everything a developer runs; `make` alone lists it. Needs Python >= 3.10 with pip and a C++20
# compiler; the rest goes into .venv, .venv-lint and build/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 20
NP ?= 2
BENCH_ARGS ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=
TEST_GPU_ARGS ?=
# Of the Python tests that start ranks, `make test` runs one in SHARE.
SHARE ?= $(if $(PYTEST_ARGS),1,5)
PYTHONS ?=
FRAMEWORK ?= torch
# The newest CPython that lightcc is tested with.
NEW_PYTHON ?= 3.14
# TensorFlow for test-tf, and for test-tf-matrix.
TF ?= 2.21.0
TFS ?= 2.14.1 2.16.2 2.18.1 2.20.0 2.21.0
# What these say of numpy is not enough for them, and they warn of themselves while imported.
WARNINGS_OF_TF = $(if $(filter 2.14.% 2.15.% 2.16.% 2.17.%,$(TF)),-W default)
NUMPY_FOR_TF = $(if $(filter 2.14.% 2.15.% 2.16.% 2.17.%,$(TF)),'numpy<2')
# What test-wheel installs beside the wheel, by version of Python: old releases and new ones.
WHEEL_WITH ?= 3.10=numpy==1.24.0 3.10=torch==2.4.1 3.11=torch==2.13.0
export JOBS
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

BIN := $(CURDIR)/.venv/bin
LINT_BIN := $(CURDIR)/.venv-lint/bin
REPORTS := $(CURDIR)/build/reports
# Programs are started here, so that they see the installed package and not the source folder.
ELSEWHERE := $(CURDIR)/build/elsewhere
PACKAGE_SOURCES := $(shell find csrc harp_plugin/abi harp_plugin/src harp_plugin/CMakeLists.txt \
  lightcc _lightcc_torch.py CMakeLists.txt setup.py pyproject.toml \
  -type f -not -name '*.so' -not -name '*.pyc' 2>/dev/null)
RUN_TESTS = PATH="$(BIN):$$PATH" tools/run_cpp_tests.sh
PYTEST_REPORT = $(REPORTS)/pytest.xml
# Ranks wait for one another, so two pytest processes for each core keep these busy.
PYTEST_WORKERS ?= $(shell echo $$(($(JOBS) < 4 ? 2 * $(JOBS) : 8)))
PYTEST = cd $(ELSEWHERE) && ../../tools/run_python_tests.sh $(BIN)/pytest $(PYTEST_WORKERS) \
  $(PYTEST_REPORT) -c ../../pyproject.toml --rootdir ../.. $(PYTEST_ARGS) ../../tests/python

.PHONY: help
help:  ## Lists the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | sort | column -t -s "$$(printf '\t')"

.venv/.ready: tools/requirements-test.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python >= 3.10 is needed")'
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r tools/requirements-test.txt
	touch $@

# From build/dev, whose C++ tests use the same objects: -O2 and lines for debuggers, where
# `pip install .` gives -O3 and link-time optimisation of HARP.
.venv/.installed: .venv/.ready $(PACKAGE_SOURCES)
	rm -f .venv/.release
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
	.venv/bin/pip install --quiet --disable-pip-version-check -r tools/requirements-demo.txt
	touch $@

.venv-lint/.ready: tools/requirements-lint.txt
	$(PYTHON) -m venv .venv-lint
	.venv-lint/bin/pip install --quiet --disable-pip-version-check -r tools/requirements-lint.txt
	touch $@

.venv-cuda/.ready: tools/requirements-cuda.txt
	$(PYTHON) -m venv .venv-cuda
	.venv-cuda/bin/pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

# FRAMEWORK=tensorflow: the same with Keras on TensorFlow, which is downloaded. Ranks train on GPUs
# where there are some that the framework can use; DEMO_ARGS=--no-cuda: on the CPU.
DEMO_OF_torch = .venv/bin examples/pytorch_topk.py
DEMO_OF_tensorflow = .venv-tf/bin examples/keras_topk.py
DEMO = $(addprefix $(CURDIR)/,$(DEMO_OF_$(FRAMEWORK)))
.PHONY: demo
demo: $(if $(filter tensorflow,$(FRAMEWORK)),.venv-tf/.installed,.venv/.demo)  ## Dense and top-k training on 2 x 2 ranks over an emulated link of 200 Mbit/s; FRAMEWORK=torch or tensorflow
	cd $(ELSEWHERE) && LIGHT_2D_ALLREDUCE=1 LIGHT_INTRA_SIZE=2 LIGHT_TOPK_THRESHOLD=16K \
	  LIGHT_TCP_RATE=12M KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 \
	  $(word 1,$(DEMO))/lightccrun -np 4 --no-prefix $(word 1,$(DEMO))/python $(word 2,$(DEMO)) $(DEMO_ARGS)

# C++ tests that sanitizers run and `make test` does not: of net-conform itself, and one more of a kind.
OF_TEST_ALL = ^harp_mutant_|_namespaces$$|^harp_conforms_v4_processes$$
.PHONY: test
test: .venv/.installed  ## Installs lightcc into .venv and runs what needs neither root nor more packages
	$(RUN_TESTS) dev --label-exclude 'slow|versions' --exclude-regex '$(OF_TEST_ALL)'
	$(PYTEST) -m "not netns and not slow" --share $(SHARE)
	.venv/bin/python tools/check_skips.py --any-skip $(REPORTS)/dev.xml $(REPORTS)/pytest.xml

# AFTER_TEST=1: `make test` has just passed here, so that what it ran is not run once more.
.PHONY: test-all
test-all: REST = $(if $(AFTER_TEST),-rest)
test-all: PYTEST_REPORT = $(REPORTS)/pytest$(REST).xml
test-all: .venv/.demo .venv/.release .venv-deepspeed/.installed  ## Installs what the rest needs, runs every test, fails on an unlisted skip
	tools/install_system_packages.sh
	PYTHON=$(BIN)/python tools/install_mpi.sh
	PYTHON=$(BIN)/python tools/install_nccl.sh
	tools/check_nccl_abi.sh .venv-nccl
	.venv/bin/pip install --quiet --disable-pip-version-check -r tools/requirements-all.txt
	@[[ $$EUID == 0 ]] || { echo "test-all needs root for network namespaces" >&2; exit 1; }
	$(RUN_TESTS) dev$(REST)
	$(PYTEST) $(if $(AFTER_TEST),--not-again $(REPORTS)/pytest.xml) --unchanged-share 3
	$(MAKE) test-tf
	.venv/bin/python tools/check_skips.py $(REPORTS)/dev$(REST).xml $(PYTEST_REPORT)

.venv-deepspeed/.ready: tools/requirements-deepspeed.txt
	$(PYTHON) -m venv .venv-deepspeed
	.venv-deepspeed/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

# What `make test` has built, beside another framework.
.venv-deepspeed/.installed .venv-tf/.installed .venv-torch/.installed: \
  .venv-%/.installed: .venv-%/.ready .venv/.installed
	PATH="$(BIN):$$PATH" LIGHTCC_BUILD_DIR=$(CURDIR)/build/dev .venv-$*/bin/pip install \
	  --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall .
	touch $@

# tf-keras would install a second TensorFlow.
OLD_KERAS = $(filter 2.14.% 2.15.%,$(TF))
.venv-tf/.ready: tools/requirements-tf.txt tools/requirements-keras.txt
	$(PYTHON) -m venv .venv-tf
	.venv-tf/bin/pip install --quiet --disable-pip-version-check -r $< tensorflow-cpu==$(TF) \
	  $(NUMPY_FOR_TF) \
	  $(if $(OLD_KERAS),,-r tools/requirements-keras.txt)
	$(if $(OLD_KERAS),,.venv-tf/bin/pip install --quiet --disable-pip-version-check --no-deps \
	  tf-keras==$(basename $(TF)).*)
	touch $@

.PHONY: test-tf
test-tf: .venv-tf/.installed  ## The tests of lightcc.tensorflow, in an environment with TensorFlow TF
	cd $(ELSEWHERE) && ../../tools/run_python_tests.sh $(CURDIR)/.venv-tf/bin/pytest $(JOBS) \
	  $(REPORTS)/pytest-tf.xml -c ../../pyproject.toml --rootdir ../.. $(WARNINGS_OF_TF) \
	  --unchanged-share 3 $(PYTEST_ARGS) ../../tests/python/tensorflow
	.venv/bin/python tools/check_skips.py $(REPORTS)/pytest-tf.xml

# IMAGE_HOME has the image and what it is made of (5 GB). It is built where it is older than what it
# holds.
IMAGE_HOME ?= $(CURDIR)/build/image
$(IMAGE_HOME)/config.json: deploy/Containerfile $(wildcard deploy/image/*) tools/build_image.sh \
  $(PACKAGE_SOURCES)
	tools/install_system_packages.sh pods
	IMAGE_HOME=$(IMAGE_HOME) tools/build_image.sh torch.txt

.PHONY: image
image: $(IMAGE_HOME)/config.json  ## The image of deploy/Containerfile with torch, by buildah; needs root

.PHONY: test-pods
test-pods: .venv/.installed $(IMAGE_HOME)/config.json  ## Builds the image, and runs jobs on pods of it; needs root
	.venv/bin/pip install --quiet --disable-pip-version-check 'pyyaml>=6,<7'
	cd $(ELSEWHERE) && IMAGE_HOME=$(IMAGE_HOME) $(BIN)/pytest -c ../../pyproject.toml \
	  --rootdir ../.. --junitxml $(REPORTS)/pytest-pods.xml $(PYTEST_ARGS) \
	  ../../tests/python/deploy/test_pods.py
	.venv/bin/python tools/check_skips.py $(REPORTS)/pytest-pods.xml

.PHONY: test-tf-matrix
test-tf-matrix:  ## The same under each TensorFlow of TFS, one after another (1.6 GB of disk each)
	for version in $(TFS); do \
	  rm -rf .venv-tf; $(MAKE) test-tf TF=$$version || exit 1; \
	done
	rm -rf .venv-tf

.venv-horovod/.ready: tools/requirements-horovod-suite.txt
	$(PYTHON) -m venv .venv-horovod
	.venv-horovod/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

# What Horovod's tests of TensorFlow import beside what test-tf has.
.venv-tf/.horovod: .venv-tf/.installed
	.venv-tf/bin/pip install --quiet --disable-pip-version-check mock parameterized packaging
	touch $@

.venv-horovod/.installed: .venv-horovod/.ready $(PACKAGE_SOURCES)
	.venv-horovod/bin/pip install --disable-pip-version-check .
	touch $@

# HOROVOD_SRC: a checkout of Horovod. HOROVOD_BASELINE: its own results, to compare with.
# IGNITE_SRC, LIGHTNING_SRC: checkouts of pytorch-ignite and of PyTorch Lightning 1.9.5.
# HOROVOD_KEEP: a file of results; what it has is not run again. HOROVOD_TENSORFLOW: 1 runs those of
# TensorFlow too, in the environment of test-tf; only: no others. HOROVOD_SECTIONS: runs these groups
# alone, for instance "interactive ray", and the page keeps its other sections.
.PHONY: horovod-suite
horovod-suite: $(if $(filter only,$(HOROVOD_TENSORFLOW)),,.venv-horovod/.installed)
horovod-suite: $(if $(HOROVOD_TENSORFLOW),.venv-tf/.horovod)  ## Runs Horovod's tests of HOROVOD_SRC against lightcc
	@[[ -d "$(HOROVOD_SRC)/test/parallel" ]] || { echo "HOROVOD_SRC=$(HOROVOD_SRC) is no checkout of Horovod" >&2; exit 1; }
	cd $(ELSEWHERE) && $(CURDIR)/$(if $(filter only,$(HOROVOD_TENSORFLOW)),.venv-tf,.venv-horovod)/bin/python \
	  $(CURDIR)/tools/horovod_suite.py $(HOROVOD_SRC) \
	  $(if $(HOROVOD_TENSORFLOW),--tensorflow $(CURDIR)/.venv-tf/bin/python) \
	  $(if $(filter only,$(HOROVOD_TENSORFLOW)),--only-tensorflow) \
	  $(if $(HOROVOD_BASELINE),--baseline $(HOROVOD_BASELINE)) --examples \
	  $(if $(IGNITE_SRC),--ignite $(IGNITE_SRC)) $(if $(LIGHTNING_SRC),--lightning $(LIGHTNING_SRC)) \
	  $(if $(HOROVOD_SECTIONS),--sections $(HOROVOD_SECTIONS)) \
	  $(if $(HOROVOD_KEEP),--keep $(HOROVOD_KEEP)) --output $(CURDIR)/docs/horovod-suite.md

.venv-torch/.ready: tools/requirements-torch-suite.txt
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

# TORCH_SRC: a checkout of torch, or a folder with its version.txt and test/distributed.
# TORCH_KEEP: a file of results; what it has is not run again.
.PHONY: torch-suite
torch-suite: .venv-torch/.installed  ## Runs torch's tests of process groups of TORCH_SRC against lightcc
	@[[ -d "$(TORCH_SRC)/test/distributed" ]] || { echo "TORCH_SRC=$(TORCH_SRC) is no checkout of torch" >&2; exit 1; }
	cd $(ELSEWHERE) && $(CURDIR)/.venv-torch/bin/python $(CURDIR)/tools/torch_suite.py $(TORCH_SRC) \
	  $(if $(TORCH_KEEP),--keep $(TORCH_KEEP)) --output $(CURDIR)/docs/torch-suite.md

# NCCL_SRC: an NCCL source tree of any version from 2.8 on.
.PHONY: abi-check
abi-check:  ## Compares harp_plugin/abi with the headers of NCCL_SRC
	@[[ -n "$(NCCL_SRC)" ]] || { echo "say where: make abi-check NCCL_SRC=an NCCL source tree" >&2; exit 1; }
	$(PYTHON) harp_plugin/tools/abi_check/abi_check.py $(NCCL_SRC)

# Each of these takes one core, so they run beside one another; what takes all of them comes after.
LINTS = lint-types lint-files lint-cuda docs
.PHONY: lint
lint: .venv/.installed .venv-lint/.ready .venv-cuda/.ready .venv-docs/.ready  ## Format, types, arrows, documentation, clang-tidy; LINT_CHANGED=1: less of it
	$(MAKE) --no-print-directory --jobs $(JOBS) --output-sync=target $(LINTS)
	tools/check_thread_safety.sh
	PATH="$(LINT_BIN):$$PATH" cmake --preset lint -DPython_EXECUTABLE=$(LINT_BIN)/python \
	  -Dpybind11_DIR="$$(.venv-lint/bin/python -m pybind11 --cmakedir)" >/dev/null
	PATH="$(LINT_BIN):$$PATH" tools/run_clang_tidy.sh

.PHONY: lint-files
lint-files: .venv-lint/.ready
	.venv-lint/bin/python tools/check_files.py
	.venv-lint/bin/python tools/check_docs.py
	.venv-lint/bin/python tools/check_words.py
	.venv-lint/bin/python tools/check_include_arrows.py
	.venv-lint/bin/python tools/cuda_mutants.py --check
	git ls-files -z | grep -zvE '^(LICENSE|(harp_plugin/)?tests/fuzz/corpus/)' | xargs -0 .venv-lint/bin/codespell
	.venv-lint/bin/ruff check .
	.venv-lint/bin/ruff format --check .
	git ls-files -z '*.cpp' '*.hpp' '*.cu' | xargs -0 .venv-lint/bin/clang-format --dry-run --Werror
	PYTHONPATH=. .venv-lint/bin/lint-imports

# One after another: the two runs of mypy share a cache.
.PHONY: lint-types
lint-types: .venv/.installed
	MYPYPATH=tools:measure .venv/bin/mypy
	MYPYPATH=tools:measure .venv/bin/mypy --strict tools measure harp_plugin/tools/abi_check
	cd $(ELSEWHERE) && $(BIN)/stubtest --mypy-config-file ../../pyproject.toml lightcc._core

.PHONY: lint-cuda
lint-cuda: .venv-lint/.ready .venv-cuda/.ready
	tools/check_cuda_kernels.sh
	tools/check_cuda_abi.sh .venv-cuda
	.venv-lint/bin/python tools/check_ptx.py .venv-cuda

.venv-docs/.ready: tools/requirements-docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

.PHONY: docs
docs: .venv-docs/.ready  ## Builds the site of the documentation into build/site; any warning fails
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs --quiet build

.PHONY: format
format: .venv-lint/.ready  ## Writes what lint would ask for, as far as tools can
	.venv-lint/bin/ruff check --fix . || true
	.venv-lint/bin/ruff format .
	git ls-files -z '*.cpp' '*.hpp' '*.cu' | xargs -0 .venv-lint/bin/clang-format -i

.PHONY: sanitize
sanitize: .venv/.ready  ## C++ tests under ASan+UBSan and under TSan (clang-19), errors in Python under ASan
	ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 $(RUN_TESTS) asan --label-exclude 'slow|versions'
	TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 $(RUN_TESTS) tsan --label-exclude 'slow|versions|one-thread'
	PATH="$(BIN):$$PATH" PYTHON=$(BIN)/python tools/run_python_asan.sh

.PHONY: fuzz
fuzz: .venv/.ready  ## Every fuzz target for FUZZ_SECONDS
	PATH="$(BIN):$$PATH" tools/run_fuzzers.sh $(FUZZ_SECONDS)

.PHONY: harp
harp: .venv/.ready  ## HARP's NCCL plugin, harp-perf and net-conform, into build/harp
	PATH="$(BIN):$$PATH" cmake --preset harp >/dev/null
	PATH="$(BIN):$$PATH" cmake --build build/harp --target harp
	ln -sf harp_plugin/src/plugin/libnccl-net-harp.so harp_plugin/src/plugin/libnccl-net.so \
	  harp_plugin/tools/harp_perf/harp-perf harp_plugin/tools/net_conform/net-conform build/harp/
	[[ ! -e build/harp/harp_plugin/src/plugin/libharp-dpdk.so ]] || \
	  ln -sf harp_plugin/src/plugin/libharp-dpdk.so build/harp/

.PHONY: harp-mutants
harp-mutants:  ## Breaks HARP's protocol in 46 places, one at a time; a test must notice each
	$(PYTHON) tools/harp_mutants.py

.PHONY: cuda-mutants
cuda-mutants: .venv/.ready  ## Breaks the CUDA kernels in 62 places, one at a time; a test must notice each
	PATH="$(BIN):$$PATH" cmake --preset dev >/dev/null
	PATH="$(BIN):$$PATH" cmake --build build/dev --target cuda_kernel_tests
	$(PYTHON) tools/cuda_mutants.py

.PHONY: kernels
kernels:  ## Writes csrc/lightcc_cuda/ptx, the CUDA kernels as the library holds them (clang 19)
	tools/check_cuda_kernels.sh --write

# Not PYTEST: a table of all that was run is the end of it. TEST_GPU_ARGS='--steps kernels' runs less.
.PHONY: test-gpu
test-gpu: .venv/.installed  ## All that only a GPU can show, in 20 minutes; a table last, or why there is no GPU
	PATH="$(BIN):$$PATH" cmake --build build/dev --target cuda_kernel_tests
	cd $(ELSEWHERE) && $(BIN)/python ../../tools/test_gpu.py $(TEST_GPU_ARGS)

# CI runs the same tests and checks in test-all and lint. CLAIMS: kernels, builds, interfaces, streams,
# errors and adapters.
CLAIMS ?=
.PHONY: gpu-claims
gpu-claims: .venv/.installed .venv-cuda/.ready  ## What is shown of GPUs without one: each claim, what ran, what passed, seconds
	PATH="$(BIN):$$PATH" $(BIN)/python tools/gpu_claims.py $(if $(CLAIMS),--claims '$(CLAIMS)')

.PHONY: bench
bench: .venv/.release  ## All-reduce over sizes on NP ranks, or what BENCH_ARGS tell lightcc.bench
	cd $(ELSEWHERE) && $(BIN)/python -m lightcc.bench $(or $(BENCH_ARGS),allreduce -np $(NP))

.venv-wheel/.ready: tools/requirements-wheel.txt
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

# From a newer Debian than this machine's, into build/pythons.
.PHONY: new-python
new-python: .venv-wheel/.ready  ## A CPython NEW_PYTHON for the wheel, where this machine has none
	.venv-wheel/bin/python tools/interpreters.py $(NEW_PYTHON) || \
	  PATH="$(CURDIR)/.venv-wheel/bin:$$PATH" tools/get_python.sh $(NEW_PYTHON)

# PYTHONS: the interpreters; without, each CPython from 3.10 on in PATH, pyenv and build/pythons.
.PHONY: wheel
wheel: .venv-wheel/.ready  ## One wheel for the CPythons of this machine, and the sources, in dist/
	.venv-wheel/bin/python tools/build_wheel.py --output dist $(PYTHONS)

.PHONY: test-wheel
test-wheel: wheel  ## Same bits under every CPython of the wheel? Downloads WHEEL_WITH (3 GB)
	.venv-wheel/bin/python tools/test_wheel.py dist $(WHEEL_WITH:%=--with %) $(PYTHONS)

# In the wheel as it is installed, without torch, which is large.
NEW_VENV = .venv-$(NEW_PYTHON)
.PHONY: test-new-python
test-new-python: new-python  ## The wheel under CPython NEW_PYTHON: the tests that do without torch
	$(MAKE) wheel
	rm -rf $(NEW_VENV)
	$$(.venv-wheel/bin/python tools/interpreters.py $(NEW_PYTHON)) -m venv --without-pip $(NEW_VENV)
	grep -v '^torch' tools/requirements-test.txt | .venv-wheel/bin/python -m pip \
	  --python $(NEW_VENV) install --quiet --disable-pip-version-check -r /dev/stdin dist/lightcc-*.whl
	mkdir -p $(ELSEWHERE) $(REPORTS)
	cd $(ELSEWHERE) && $(CURDIR)/$(NEW_VENV)/bin/python -m pytest -c ../../pyproject.toml \
	  --rootdir ../.. -n $(PYTEST_WORKERS) --junitxml $(REPORTS)/pytest-$(NEW_PYTHON).xml \
	  -m "not netns and not slow" $(PYTEST_ARGS) ../../tests/python
	$(NEW_VENV)/bin/python tools/check_skips.py --any-skip $(REPORTS)/pytest-$(NEW_PYTHON).xml

.PHONY: release-check
release-check: new-python  ## What is missing before dist/ can be released?
	$(MAKE) test-wheel docs
	.venv-wheel/bin/python -m twine check --strict dist/*
	.venv-wheel/bin/python tools/check_release.py dist

.PHONY: clean
clean:  ## Removes everything that the targets above made
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
