# `make demo` and `make test` work on a fresh machine: both build .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test lint types broker browser clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: setup
	$(BIN)/patchsvdd demo --out demo

test: lint types broker browser
	$(BIN)/pytest --numprocesses 2 --dist loadfile

# An MQTT broker for the tests that want a real one, which are skipped without. The tests start it themselves: the
# service that Debian starts with the package is stopped.
broker:
	@PATH="$$PATH:/usr/sbin"; command -v mosquitto >/dev/null || { \
	  command -v apt-get >/dev/null && { \
	    if [ "$$(id -u)" = 0 ]; then as=; else as="sudo -n"; fi; \
	    $$as true && export DEBIAN_FRONTEND=noninteractive && \
	    { $$as apt-get install -y -qq mosquitto || { $$as apt-get update -qq && $$as apt-get install -y -qq mosquitto; }; } && \
	    $$as systemctl disable --now mosquitto; \
	  } >/dev/null 2>&1; \
	} || command -v mosquitto >/dev/null || echo "no mosquitto could be installed: tests of MQTT are skipped"

# Chromium for the tests of the page, which are skipped without.
browser:
	@test -x /usr/bin/chromium || { \
	  command -v apt-get >/dev/null && { \
	    if [ "$$(id -u)" = 0 ]; then as=; else as="sudo -n"; fi; \
	    $$as true && export DEBIAN_FRONTEND=noninteractive && \
	    { $$as apt-get install -y -qq chromium || { $$as apt-get update -qq && $$as apt-get install -y -qq chromium; }; }; \
	  } >/dev/null 2>&1; \
	} || test -x /usr/bin/chromium || echo "no Chromium could be installed: tests of the page are skipped"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo build .mypy_cache .ruff_cache .pytest_cache .hypothesis
