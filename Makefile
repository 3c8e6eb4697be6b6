# One environment in .venv, one target per task. `make PYTHON=python3.10 test` chooses the interpreter.

# The first of these that MXNet 1.9.1 supports, else python3, for which `make` then says what to do.
PYTHONS := python3 python3.11 python3.10 python3.9 python3.8
SUPPORTED := import sys; sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 11))
ifeq ($(origin PYTHON),undefined)
PYTHON := $(or $(shell for p in $(PYTHONS); do $$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p && exit; done),python3)
endif
VENV := .venv
BIN := $(VENV)/bin
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
# The name contains the version, so another interpreter gets a new environment.
STAMP := $(VENV)/.installed-$(PYTHON_VERSION)
# Touched after the native code is compiled.
NATIVE := $(VENV)/.native-$(PYTHON_VERSION)

export MPLBACKEND ?= Agg
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# These variables of the user's environment must not affect the one in .venv. Tests start many processes: without
# bytecode, each compiles all modules.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

# How many processes `make test` runs.
TEST_PROCESSES ?= 2
# How long `make fuzz` runs, and its seed (default: a new one).
FUZZ_MINUTES ?= 10
FUZZ_SEED ?=

# The environments of the other systems, for `make peers`; JAX needs another NumPy than the rest.
PEERS := .venv-peers
JAX := .venv-jax
# The environment of Ray, for `make test-ray`; it takes from .venv what it has not itself.
RAY := .venv-ray
RAY_STAMP := $(RAY)/.installed-$(PYTHON_VERSION)
PEERS_STAMP := $(PEERS)/.installed-$(PYTHON_VERSION)
JAX_STAMP := $(JAX)/.installed-$(PYTHON_VERSION)
PEERS_OPTIONS ?=
# The packages that build the site are installed into .venv at the first `make docs`.
DOCS_STAMP := $(VENV)/.docs-$(PYTHON_VERSION)
# Data and rounds: make bench BENCH_OPTIONS="--data sick --wikiner wikiner --sst sst --clevr clevr".
BENCH_OPTIONS ?=

# The versions of Python that `make wheels` builds for (default: all that it finds).
VERSIONS ?=

# The source of MXNet 1.9.1, for `make mxnet-tests`; and its options, such as "--modules test_loss --processes 2".
MXNET ?=
MXNET_OPTIONS ?=

# Native code with sanitizers, apart from the ordinary one; and the tests of it: all of kernels and programs, Python
# code in the middle of calls, keys, and random programs.
SANITIZED := build/sanitized
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer \
  --param=asan-stack=0 -g1 -O1
SANITIZED_TESTS ?= tests/kernel tests/test_structure.py tests/misuse/test_reentrance.py \
  tests/misuse/test_earlier_flushes.py tests/fuzz

.PHONY: help demo test test-deep test-ray lint installs bench peers fuzz mxnet-tests no-source sanitize sanitize-c docs wheels clean

help:
	@echo "make demo   train the Tree-LSTM on the built-in corpus and compare speeds (minutes)"
	@echo "make test   run the tests"
	@echo "make test-deep  run them with all combinations, and twenty times as many random examples"
	@echo "make test-ray  test the services on a local cluster of Ray, which it installs (two minutes)"
	@echo "make lint   run ruff, and mypy in strict mode"
	@echo "make installs  install the package in all ways, on each Python 3.8 to 3.11 found here, and run some tests there"
	@echo "make bench  time all workloads against the required values (at most 15 minutes; lists what it skips)"
	@echo "make peers  compare speeds with DyNet, PyTorch, torchfold, DGL and JAX, which it installs (ten minutes)"
	@echo "make fuzz   compare random programs with the loop, for FUZZ_MINUTES (default: 10), from FUZZ_SEED on"
	@echo "make mxnet-tests MXNET=<source>"
	@echo "            run MXNet's own unit tests plain and in scopes (half an hour; needs the source of MXNet 1.9.1)"
	@echo "make sanitize"
	@echo "            run the tests of native code with the sanitizers of addresses and of undefined behaviour"
	@echo "make sanitize-c"
	@echo "            the same of what is written in C, in two minutes"
	@echo "make docs   build the site, in build/html"
	@echo "make wheels build a wheel in dist/ for each Python 3.8 to 3.11 found here, each tried in a new environment"
	@echo "make clean  remove the environment and everything built"

demo: $(NATIVE)
	$(BIN)/python experiments/tree_lstm_relatedness.py demo

test: $(NATIVE)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal

test-deep: $(NATIVE)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal --hypothesis-profile=deep

test-ray: $(NATIVE) $(RAY_STAMP)
	$(RAY)/bin/python -m pytest -q tests/test_ray.py

lint: $(NATIVE)
	$(BIN)/ruff check .
	$(BIN)/mypy

installs: $(NATIVE)
	$(BIN)/python tools/installs.py

bench: $(NATIVE)
	$(BIN)/python experiments/benchmark.py --minutes 12 --rounds 3 --seconds 0.5 --loop-samples 8 \
	  --alone-minibatches 30 --counts $(BENCH_OPTIONS)

# Data and rounds: make peers PEERS_OPTIONS="--data sick --wikiner wikiner --sst sst".
peers: $(NATIVE) $(PEERS_STAMP) $(JAX_STAMP)
	$(BIN)/python experiments/benchmark.py --workloads sick,tagger,sst --ways gdb,gdb-buckets,peers \
	  --batch-sizes 32,256 --output runs/peers $(PEERS_OPTIONS)

fuzz: $(NATIVE)
	$(BIN)/python -m tests.fuzz --minutes $(FUZZ_MINUTES) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

mxnet-tests: $(if $(wildcard $(MXNET)/tests/python/unittest),,no-source) $(NATIVE)
	$(BIN)/python -m tests.mxnet_suite '$(MXNET)' $(MXNET_OPTIONS)

# These fail at the first error that the address sanitizer or that of undefined behaviour finds. They are not asked for
# leaks, of which Python and MXNet have many. The address sanitizer does not see into Python's own allocator, and cannot
# check the stack: fibers share one, and each finds there what the sanitizer has noted for another.
sanitize: $(NATIVE)
	$(call BUILD_SANITIZED,$(SANITIZED),$(SANITIZERS))
	$(call RUN_SANITIZED,$(SANITIZED),$(SANITIZED_TESTS))

# All that is in C, for the instruction set that every processor has; the other modules are the ordinary ones.
sanitize-c: $(NATIVE)
	GDB_ONLY_C=1 $(call BUILD_SANITIZED,$(SANITIZED)-c,$(SANITIZERS) -DGDB_ONLY_BASE)
	ln -sf $(patsubst %,"$(CURDIR)"/gluon_dynbatch/native/%.*.so,$(CYTHON_ONLY)) $(SANITIZED)-c/lib/gluon_dynbatch/native
	$(call RUN_SANITIZED,$(SANITIZED)-c,tests/kernel)

CYTHON_ONLY := _cython assembling lowering planning posting recency recording scheduling

# Compiles the package with some flags: folder, flags.
define BUILD_SANITIZED
CFLAGS="$(2)" LDFLAGS="$(2)" $(BIN)/python -W ignore setup.py -q build --build-base $(1) --build-lib $(1)/lib
endef

# Runs tests of a package that is compiled so: folder, tests.
define RUN_SANITIZED
cd $(1)/lib && ln -sfn $(foreach name,docs experiments pyproject.toml tests,"$(CURDIR)/$(name)") .
cd $(1)/lib && PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:handle_segv=2 \
  LD_PRELOAD="$(foreach name,libasan.so libstdc++.so.6,$(shell $${CC:-gcc} -print-file-name=$(name)))" \
  "$(abspath $(BIN))/python" -m pytest -q -n $(TEST_PROCESSES) --dist worksteal --capture=sys -p no:cacheprovider $(2)
endef

no-source:
	@$(call STOP,'$(MXNET)' has no unit tests of MXNet 1.9.1. Get its source and name it:\n  git clone --depth 1 --branch 1.9.1 https://github.com/apache/mxnet\n  make mxnet-tests MXNET=mxnet)

# Warnings are errors. The Python code of the pages runs in `make test`.
docs: $(NATIVE) $(DOCS_STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/html

wheels:
	$(PYTHON) tools/wheels.py $(VERSIONS)

COMMA := ,
define STOP
{ printf 'error: %b\n' "$(1)" >&2; exit 1; }
endef

# Commands that the user can type as shown.
GOALS := $(or $(MAKECMDGOALS),demo)
GET_PYTHON := \nIf you have one$(COMMA) name it:\n  make PYTHON=python3.11 $(GOALS)\nWith uv:\n  uv python install 3.11\n  make PYTHON=\$$(uv python find 3.11) $(GOALS)\nWith pyenv:\n  pyenv install 3.11\n  make PYTHON=\$$(pyenv prefix 3.11)/bin/python $(GOALS)

# Shows the progress of a slow command: label, number of steps, pattern of output that ends a step.
SHOW = @$(BIN)/python tools/progress.py "$(1)" $(2) '$(3)'

$(STAMP): requirements.txt setup.py Makefile
	@case "$(PYTHON_VERSION)" in \
	  3.8|3.9|3.10|3.11) ;; \
	  "") $(call STOP,'$(PYTHON)' does not run. MXNet 1.9.1 needs Python 3.8 to 3.11.$(GET_PYTHON)) ;; \
	  *) $(call STOP,MXNet 1.9.1 needs Python 3.8 to 3.11 and '$(PYTHON)' is $(PYTHON_VERSION).$(GET_PYTHON)) ;; \
	esac
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  $(call STOP,'$(PYTHON)' has no venv module; on Debian and Ubuntu install python$(PYTHON_VERSION)-venv)
	@command -v $${CC:-$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_config_var("CC"))')} >/dev/null || \
	  $(call STOP,no C compiler found and gluonnlp 0.10 is built from source; install gcc or set CC)
	@test -f "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || \
	  $(call STOP,'$(PYTHON)' has no C headers and gluonnlp 0.10 is built from source; on Debian and Ubuntu install python$(PYTHON_VERSION)-dev)
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet pip==25.0.1
# Build tools come first and are used without isolation, so that builds use pinned versions, too.
	$(BIN)/python -m pip install --quiet -c requirements.txt setuptools wheel Cython
	$(call SHOW,installing packages,$$(grep -c == requirements.txt),^Collecting) \
	  $(BIN)/python -m pip install --no-build-isolation -r requirements.txt
	$(BIN)/python -m pip check
# The package is imported from this folder; `pip install -e` would compile the native code again.
	@echo "$(CURDIR)" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gluon_dynbatch.pth"
	@touch $@

$(DOCS_STAMP): docs/requirements.txt $(STAMP)
	$(BIN)/python -m pip install --quiet -c requirements.txt -r docs/requirements.txt
	$(BIN)/python -m pip check
	@touch $@

$(PEERS_STAMP): experiments/peers/requirements.txt
	$(call INSTALL_PEERS,$(PEERS),$<)

$(JAX_STAMP): experiments/peers/requirements-jax.txt
	$(call INSTALL_PEERS,$(JAX),$<)

$(RAY_STAMP): tests/requirements-ray.txt $(STAMP)
	$(call INSTALL_PEERS,$(RAY),$<)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-venv.pth"

# Creates an environment for other systems: folder, requirements.
define INSTALL_PEERS
@case "$(PYTHON_VERSION)" in \
  3.11) ;; \
  *) $(call STOP,$(2) has pins for Python 3.11 and '$(PYTHON)' is $(PYTHON_VERSION); choose it with: make PYTHON=python3.11 $(GOALS)) ;; \
esac
rm -rf $(1)
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install --quiet pip==25.0.1
$(1)/bin/python -m pip install --quiet -r $(2)
$(1)/bin/python -m pip check
@touch $@
endef

$(NATIVE): $(STAMP) $(wildcard gluon_dynbatch/native/*.pyx gluon_dynbatch/native/*.pxd gluon_dynbatch/native/*.pxi gluon_dynbatch/native/c/*)
	$(call SHOW,compiling native code,17,Cythonizing| -shared ) \
	  $(BIN)/python setup.py build_ext --inplace
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) $(JAX) $(RAY) build dist *.egg-info gluon_dynbatch/native/*.so gluon_dynbatch/native/*.c .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
