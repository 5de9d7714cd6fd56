# The rest of the targets, for who changes lightcc, measures it beside others or releases it; a part of
# the Makefile. docs/inside/testing.md says what each does and needs.

# A framework in an environment of its own, and other programs' suites, one at a time, in another.
SUITE_BIN := $(CURDIR)/.venv-suite/bin
# The newest CPython that lightcc is tested with.
NEW_PYTHON ?= 3.14
# TensorFlow for test-tf, and for test-tf-matrix.
TF ?= 2.21.0
TFS ?= 2.14.1 2.16.2 2.18.1 2.20.0 2.21.0
# What these say of numpy is not enough for them, and they warn of themselves while imported.
OLD_TF = $(filter 2.14.% 2.15.% 2.16.% 2.17.%,$(TF))
OLD_KERAS = $(filter 2.14.% 2.15.%,$(TF))
# What test-wheel installs beside the wheel, by version of Python: old releases and new ones.
WHEEL_WITH ?= 3.10=numpy==1.24.0 3.10=torch==2.4.1 3.11=torch==2.13.0
PYTHONS ?=
FUZZ_SECONDS ?= 20
TEST_GPU_ARGS ?=

# What `make test` leaves out; the parts' seconds are in build/reports/seconds.txt.
.PHONY: test-all
test-all: .venv/.demo
	tools/timed.sh '  packages' $(MAKE) --jobs 3 --output-sync=target \
	  .venv/.rest .venv-tf/.ready .venv-suite/.deepspeed-ready
	$(MAKE) .venv-tf/.installed .venv-suite/.deepspeed-installed
	tools/timed.sh '  pip install .' $(MAKE) .venv/.release
	@[[ $$EUID == 0 ]] || { echo "test-all needs root for network namespaces" >&2; exit 1; }
	tools/timed.sh '  C++' env $(RUN_CPP_TESTS) dev dev-rest --label-regex '$(CPP_REST)'
	cd $(ELSEWHERE) && ../../tools/timed.sh '  Python' \
	  $(call RUN_PYTHON_TESTS,.venv,$(PYTEST_WORKERS),pytest-rest) -m '$(PYTHON_REST)' ../../tests/python
	tools/timed.sh '  TensorFlow' $(MAKE) test-tf
	.venv/bin/python tools/check_skips.py $(REPORTS)/dev-rest.xml $(REPORTS)/pytest-rest.xml

# Not a file that stays: each of these looks what is missing.
.PHONY: .venv/.rest
.venv/.rest: .venv/.ready
	tools/install_system_packages.sh
	PYTHON=$(BIN)/python tools/install_mpi.sh
	PYTHON=$(BIN)/python tools/install_nccl.sh
	tools/check_nccl_abi.sh .venv-nccl
	.venv/bin/$(PIP_INSTALL) -r tools/requirements-all.txt

# What `make test` has built, beside another framework.
INSTALL_FROM_DEV = install --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall .
.venv-tf/.installed: .venv-tf/.ready .venv/.installed
	PATH="$(BIN):$$PATH" LIGHTCC_BUILD_DIR=$(CURDIR)/build/dev .venv-tf/bin/pip $(INSTALL_FROM_DEV)
	touch $@

# tf-keras would install a second TensorFlow.
.venv-tf/.ready: tools/requirements-tf.txt tools/requirements-keras.txt
	$(PYTHON) -m venv .venv-tf
	.venv-tf/bin/$(PIP_INSTALL) -r $< tensorflow-cpu==$(TF) \
	  $(if $(OLD_TF),'numpy<2') $(if $(OLD_KERAS),,-r tools/requirements-keras.txt)
	$(if $(OLD_KERAS),,.venv-tf/bin/$(PIP_INSTALL) --no-deps tf-keras==$(basename $(TF)).*)
	touch $@

# The environment has one suite, and is made anew for another.
.venv-suite/.%-ready: tools/requirements-%.txt
	rm -rf .venv-suite
	$(PYTHON) -m venv .venv-suite
	.venv-suite/bin/$(PIP_INSTALL) -r $<
	touch $@

.venv-suite/.%-installed: .venv-suite/.%-ready .venv/.installed
	PATH="$(BIN):$$PATH" LIGHTCC_BUILD_DIR=$(CURDIR)/build/dev .venv-suite/bin/pip $(INSTALL_FROM_DEV)
	touch $@
.PRECIOUS: .venv-suite/.%-ready

.PHONY: test-tf
test-tf: .venv-tf/.installed
	cd $(ELSEWHERE) && $(call RUN_PYTHON_TESTS,.venv-tf,$(JOBS),pytest-tf) \
	  $(if $(OLD_TF),-W default) ../../tests/python/tensorflow
	.venv/bin/python tools/check_skips.py $(REPORTS)/pytest-tf.xml

# Each takes 1.6 GB of disk.
.PHONY: test-tf-matrix
test-tf-matrix:
	for version in $(TFS); do \
	  rm -rf .venv-tf; $(MAKE) test-tf TF=$$version || exit 1; \
	done
	rm -rf .venv-tf

# IMAGE_HOME has the image and what it is made of (5 GB). It is built where it is older than what it
# holds.
IMAGE_HOME ?= $(CURDIR)/build/image
$(IMAGE_HOME)/config.json: deploy/Containerfile $(wildcard deploy/image/*) tools/build_image.sh \
  $(PACKAGE_SOURCES)
	tools/install_system_packages.sh pods
	IMAGE_HOME=$(IMAGE_HOME) tools/build_image.sh torch.txt

.PHONY: image
image: $(IMAGE_HOME)/config.json

.PHONY: test-pods
test-pods: .venv/.installed $(IMAGE_HOME)/config.json
	.venv/bin/$(PIP_INSTALL) 'pyyaml>=6,<7'
	cd $(ELSEWHERE) && IMAGE_HOME=$(IMAGE_HOME) $(call RUN_PYTHON_TESTS,.venv,0,pytest-pods) \
	  ../../tests/python/deploy/test_pods.py
	.venv/bin/python tools/check_skips.py $(REPORTS)/pytest-pods.xml

# What Horovod's tests of TensorFlow import beside what test-tf has.
.venv-tf/.horovod: .venv-tf/.installed
	.venv-tf/bin/$(PIP_INSTALL) mock parameterized packaging
	touch $@

# HOROVOD_SRC: a checkout of Horovod. HOROVOD_BASELINE: its own results, to compare with.
# IGNITE_SRC, LIGHTNING_SRC: checkouts of pytorch-ignite and of PyTorch Lightning 1.9.5.
# HOROVOD_KEEP: a file of results; what it has is not run again. HOROVOD_SECTIONS: runs these groups
# alone, for instance "interactive ray", and the page keeps its other sections. HOROVOD_TENSORFLOW=1:
# runs those of TensorFlow too, in the environment of test-tf, as the section "tensorflow" does alone.
ONLY_TF = $(if $(filter-out tensorflow,$(HOROVOD_SECTIONS)),,$(HOROVOD_SECTIONS))
WITH_TF = $(or $(HOROVOD_TENSORFLOW),$(filter tensorflow,$(HOROVOD_SECTIONS)))
.PHONY: horovod-suite
horovod-suite: $(if $(ONLY_TF),,.venv-suite/.horovod-suite-installed)
horovod-suite: $(if $(WITH_TF),.venv-tf/.horovod)
	@[[ -d "$(HOROVOD_SRC)/test/parallel" ]] || { echo "HOROVOD_SRC=$(HOROVOD_SRC) is no checkout of Horovod" >&2; exit 1; }
	cd $(ELSEWHERE) && $(if $(ONLY_TF),$(CURDIR)/.venv-tf/bin,$(SUITE_BIN))/python \
	  $(CURDIR)/tools/horovod_suite.py $(HOROVOD_SRC) \
	  $(if $(WITH_TF),--tensorflow $(CURDIR)/.venv-tf/bin/python) \
	  $(if $(HOROVOD_BASELINE),--baseline $(HOROVOD_BASELINE)) --examples \
	  $(if $(IGNITE_SRC),--ignite $(IGNITE_SRC)) $(if $(LIGHTNING_SRC),--lightning $(LIGHTNING_SRC)) \
	  $(if $(HOROVOD_SECTIONS),--sections $(HOROVOD_SECTIONS)) \
	  $(if $(HOROVOD_KEEP),--keep $(HOROVOD_KEEP)) --output $(CURDIR)/docs/reference/horovod-suite.md

# TORCH_SRC: a checkout of torch, or a folder with its version.txt and test/distributed.
# TORCH_KEEP: a file of results; what it has is not run again.
.PHONY: torch-suite
torch-suite: .venv-suite/.torch-suite-installed
	@[[ -d "$(TORCH_SRC)/test/distributed" ]] || { echo "TORCH_SRC=$(TORCH_SRC) is no checkout of torch" >&2; exit 1; }
	cd $(ELSEWHERE) && $(SUITE_BIN)/python $(CURDIR)/tools/torch_suite.py $(TORCH_SRC) \
	  $(if $(TORCH_KEEP),--keep $(TORCH_KEEP)) --output $(CURDIR)/docs/reference/torch-suite.md

# NCCL_SRC: an NCCL source tree of any version from 2.8 on.
.PHONY: abi-check
abi-check:
	@[[ -n "$(NCCL_SRC)" ]] || { echo "say where: make abi-check NCCL_SRC=an NCCL source tree" >&2; exit 1; }
	$(PYTHON) harp_plugin/tools/abi_check/abi_check.py $(NCCL_SRC)

.PHONY: lint-files
lint-files: .venv-tools/.lint
	.venv-tools/bin/python tools/check_files.py
	.venv-tools/bin/python tools/check_docs.py
	.venv-tools/bin/python tools/check_words.py
	.venv-tools/bin/python tools/check_include_arrows.py
	.venv-tools/bin/python tools/mutants.py cuda --check
	git ls-files -z | grep -zvE '^(LICENSE|(harp_plugin/)?tests/fuzz/corpus/)' | xargs -0 .venv-tools/bin/codespell
	.venv-tools/bin/ruff check .
	.venv-tools/bin/ruff format --check .
	git ls-files -z '*.cpp' '*.hpp' '*.cu' | xargs -0 .venv-tools/bin/clang-format --dry-run --Werror
	PYTHONPATH=. .venv-tools/bin/lint-imports

# One after another: the two runs of mypy share a cache.
.PHONY: lint-types
lint-types: .venv/.installed
	MYPYPATH=tools:measure .venv/bin/mypy
	MYPYPATH=tools:measure .venv/bin/mypy --strict tools measure harp_plugin/tools/abi_check
	cd $(ELSEWHERE) && $(BIN)/stubtest --mypy-config-file ../../pyproject.toml lightcc._core

# The assemblers and headers depend on drivers and runtimes that nobody needs here.
.venv-tools/.cuda: PIP_INSTALL += --no-deps
.PHONY: lint-cuda
lint-cuda: .venv-tools/.lint .venv-tools/.cuda
	tools/check_cuda_kernels.sh
	tools/check_cuda_abi.sh .venv-tools
	.venv-tools/bin/python tools/check_ptx.py .venv-tools

.PHONY: format
format: .venv-tools/.lint
	.venv-tools/bin/ruff check --fix . || true
	.venv-tools/bin/ruff format .
	git ls-files -z '*.cpp' '*.hpp' '*.cu' | xargs -0 .venv-tools/bin/clang-format -i

# The builds by clang also check which mutex guards what (-Wthread-safety).
.PHONY: sanitize
sanitize: .venv/.ready
	ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 tools/timed.sh \
	  '  ASan and UBSan' env $(RUN_CPP_TESTS) asan asan --label-exclude '$(CPP_REST)'
	TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 tools/timed.sh \
	  '  TSan' env $(RUN_CPP_TESTS) tsan tsan --label-exclude '$(CPP_REST)'
	PATH="$(BIN):$$PATH" PYTHON=$(BIN)/python tools/timed.sh '  Python under ASan' tools/run_python_asan.sh

.PHONY: fuzz
fuzz: .venv/.ready
	PATH="$(BIN):$$PATH" tools/run_fuzzers.sh $(FUZZ_SECONDS)

.PHONY: harp
harp: .venv/.ready
	PATH="$(BIN):$$PATH" cmake --preset harp >/dev/null
	PATH="$(BIN):$$PATH" cmake --build build/harp --target harp
	ln -sf harp_plugin/src/plugin/libnccl-net-harp.so harp_plugin/src/plugin/libnccl-net.so \
	  harp_plugin/tools/harp_perf/harp-perf harp_plugin/tools/net_conform/net-conform build/harp/
	[[ ! -e build/harp/harp_plugin/src/plugin/libharp-dpdk.so ]] || \
	  ln -sf harp_plugin/src/plugin/libharp-dpdk.so build/harp/

.PHONY: harp-mutants
harp-mutants:
	$(PYTHON) tools/mutants.py harp

.PHONY: cuda-mutants
cuda-mutants: .venv/.ready
	PATH="$(BIN):$$PATH" cmake --preset dev >/dev/null
	PATH="$(BIN):$$PATH" cmake --build build/dev --target cuda_kernel_tests
	$(PYTHON) tools/mutants.py cuda

.PHONY: kernels
kernels:
	tools/check_cuda_kernels.sh --write

# What goes to a machine with a GPU: the wheel, unpacked, and the cases of kernels. PYTHONS: that machine's
# Python.
.PHONY: gpu-kit
gpu-kit: wheel .venv/.ready
	rm -rf build/gpu
	mkdir -p build/gpu
	$(PYTHON) -m zipfile -e "$$(ls -t dist/lightcc-*.whl | head -n 1)" build/gpu/site
	PATH="$(BIN):$$PATH" cmake --preset dev >/dev/null
	PATH="$(BIN):$$PATH" cmake --build build/dev --target cuda_kernel_tests
	strip -o build/gpu/cuda_kernel_tests build/dev/tests/cpp/cuda_kernel_tests

# With what gpu-kit has made, PYTHON is the machine's, and nothing is installed. Not run_python_tests.sh: a
# table of all that was run is the end of it. TEST_GPU_ARGS='--steps kernels' runs less.
GPU_KIT := $(wildcard build/gpu/site)
.PHONY: test-gpu
test-gpu: $(if $(GPU_KIT),,.venv/.installed)
	$(if $(GPU_KIT),,PATH="$(BIN):$$PATH" cmake --build build/dev --target cuda_kernel_tests)
	$(if $(GPU_KIT),$(PYTHON),$(BIN)/python) tools/test_gpu.py $(TEST_GPU_ARGS)

# From a newer Debian than this machine's, into build/pythons.
.PHONY: new-python
new-python: .venv-tools/.wheel
	.venv-tools/bin/python tools/interpreters.py $(NEW_PYTHON) || \
	  PATH="$(TOOLS_BIN):$$PATH" tools/get_python.sh $(NEW_PYTHON)

# PYTHONS: the interpreters; without, each CPython from 3.10 on in PATH, pyenv and build/pythons.
# MACHINES: x86_64, aarch64 or both; without, this one.
.PHONY: wheel
wheel: .venv-tools/.wheel
	$(if $(filter aarch64,$(MACHINES)),tools/get_aarch64.sh)
	.venv-tools/bin/python tools/build_wheel.py --output dist $(MACHINES:%=--machine %) $(PYTHONS)

# By qemu-user: C++ tests of what depends on the processor, and the wheel.
.PHONY: test-aarch64
test-aarch64: .venv/.installed .venv-tools/.wheel
	tools/get_aarch64.sh
	$(RUN_CPP_TESTS) aarch64 aarch64 --label-exclude '$(CPP_REST)'
	.venv-tools/bin/python tools/build_wheel.py --output build/aarch64-dist --machine aarch64 \
	  $$(.venv-tools/bin/python tools/interpreters.py 3.11)
	.venv/bin/python tools/test_aarch64.py build/aarch64-dist build/aarch64-root

.PHONY: test-wheel
test-wheel: wheel
	.venv-tools/bin/python tools/test_wheel.py dist $(WHEEL_WITH:%=--with %) $(PYTHONS)

# In the wheel as it is installed, without torch, which is large.
.PHONY: test-new-python
test-new-python: new-python
	$(MAKE) wheel
	rm -rf .venv-suite
	$$(.venv-tools/bin/python tools/interpreters.py $(NEW_PYTHON)) -m venv --without-pip .venv-suite
	grep -v '^torch' tools/requirements-test.txt | .venv-tools/bin/python -m pip \
	  --python .venv-suite install --quiet --disable-pip-version-check -r /dev/stdin dist/lightcc-*.whl
	mkdir -p $(ELSEWHERE) $(REPORTS)
	cd $(ELSEWHERE) && $(call RUN_PYTHON_TESTS,.venv-suite,$(PYTEST_WORKERS),pytest-$(NEW_PYTHON)) \
	  -m 'not ($(PYTHON_REST))' ../../tests/python
	.venv-suite/bin/python tools/check_skips.py --any-skip $(REPORTS)/pytest-$(NEW_PYTHON).xml

.PHONY: release-check
release-check: new-python
	$(MAKE) test-wheel docs MACHINES='x86_64 aarch64'
	.venv-tools/bin/python -m twine check --strict dist/*
	.venv-tools/bin/python tools/check_release.py dist

.PHONY: clean
clean:
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
