# Everything here works on a clean clone: what a target needs is set up the first time and left alone afterwards.
.DEFAULT_GOAL := help
.PHONY: help setup demo test long soak bench lint type clean
MAKEFLAGS += --no-print-directory

BIN   := .venv/bin
READY := .venv/ready
# Spark starts the Java of JAVA_HOME; this finds one when the variable is not set or points to an old one.
JAVA  = JAVA_HOME="$$(scripts/find-java)"

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## Make .venv with everything; find or install Java and PostgreSQL
	@echo "Set up in .venv. Next: make demo, make test"

$(READY): pyproject.toml requirements/build.txt requirements/lock.txt scripts/setup
	@scripts/setup
	@touch $@

demo: $(READY)  ## Run a small shop from its database to Gold, change it, run again
	@$(JAVA) $(BIN)/strandline demo

test: $(READY)  ## Run the tests in ten minutes (some of them: make test ARGS="-m 'not spark'")
	@$(JAVA) scripts/test $(ARGS)

long: $(READY)  ## Run all tests: every example, every failpoint, all of Spark (under an hour)
	@$(JAVA) scripts/test --long

soak: $(READY)  ## Live through thousands of generated pasts, die at every point and at random (hours)
	@STRANDLINE_EXAMPLES=24 $(BIN)/python -m pytest tests/stories/deletes/test_source_faults.py -m "not spark" $(ARGS)
	@STRANDLINE_EXAMPLES=4 $(BIN)/python -m pytest tests/laws -m "long and not spark" $(ARGS)
	@STRANDLINE_EXAMPLES=40 $(BIN)/python -m pytest tests/meaning/test_histories.py -m "not spark" -k every_run $(ARGS)
	@STRANDLINE_EXAMPLES=24 $(BIN)/python -m pytest tests/meaning/test_feeds.py -m "not spark" $(ARGS)
	@STRANDLINE_EXAMPLES=6 $(JAVA) $(BIN)/python -m pytest tests/meaning/test_histories.py -m spark -k every_run $(ARGS)
	@STRANDLINE_EXAMPLES=84 $(BIN)/python -m pytest tests/meaning/test_events.py tests/meaning/test_sequence.py -m "not spark" $(ARGS)
	@STRANDLINE_EXAMPLES=100 $(JAVA) $(BIN)/python -m pytest tests/meaning/test_events.py -m spark $(ARGS)
	@STRANDLINE_EXAMPLES=6 $(JAVA) $(BIN)/python -m pytest tests/meaning/test_feeds.py -m spark $(ARGS)
	@STRANDLINE_EXAMPLES=24 $(BIN)/python -m pytest -rP tests/crash/test_protocol.py tests/crash/test_fencing.py tests/crash/test_fault_commands.py $(ARGS)
	@STRANDLINE_EXAMPLES=24 STRANDLINE_SOAK_MINUTES=30 $(BIN)/python -m pytest -rP tests/crash/test_fault_points.py $(ARGS)
	@STRANDLINE_EXAMPLES=24 $(JAVA) $(BIN)/python -m pytest tests/crash/test_fault_points_spark.py $(ARGS)

bench: $(READY)  ## Race against a script by hand and a plain MERGE (ARGS="--rows 100000", --json)
	@$(JAVA) $(BIN)/python -m bench $(ARGS)

lint: $(READY)  ## Check style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

type: $(READY)  ## Check types
	@$(BIN)/mypy

clean:  ## Remove caches, builds and the demo (.venv stays)
	@rm -rf .demo .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
