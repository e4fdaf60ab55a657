# make demo: the main job. make test: the tests. Both make .venv and install first; a second call is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
POLYCLINIC_DATA ?= $(wildcard $(abspath ../shared/data))
export POLYCLINIC_DATA
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: install demo test slow compose check lint types format generate docs clean

install: $(STAMP)

$(STAMP): pyproject.toml experiments/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' -e ./experiments
	@# Tests compare with lifelines, which asks for pandas below 3 and works with it, and with parts of scikit-survival that need
	@# neither its solvers nor numexpr, whose threads every process that imports pandas would have.
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps lifelines autograd autograd-gamma scikit-survival
	touch $@

demo: $(STAMP)
	$(BIN)/polyclinic run --compare

# Two processes of tests share the cores.
test slow check: export OMP_NUM_THREADS = 1

test: $(STAMP)
	$(BIN)/python -m pytest tests -m 'not slow and not compose' -n 2 --durations 15

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow -n 2 --durations 40 --verbose

compose: $(STAMP)
	$(BIN)/python -m pytest -m compose -n 0 -rs --durations 5

check: lint types
	$(BIN)/python -m pytest -q -n 2 -m 'not slow and not compose' tests/packaging/test_rooms.py tests/packaging/test_plain_english.py tests/privacy/ledger/test_ledger.py tests/privacy/test_clipping.py tests/privacy/accounting/test_composition.py tests/privacy/test_streams.py tests/ehr/test_schema.py tests/ehr/test_expressions.py tests/ehr/test_shard.py tests/models/test_gan.py tests/training/test_losses.py tests/client/test_enrolment.py tests/server/exchange/test_merging.py tests/strategies/test_faults.py tests/front/test_config.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: $(STAMP)
	$(BIN)/python docs/generate.py

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
