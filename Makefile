# `make demo` and `make test` work on a fresh machine: both build .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEV := $(VENV)/.dev
# The demo needs fewer packages than the tests, so it installs faster; an environment for the tests also works.
ENOUGH := $(if $(wildcard $(DEV)),$(DEV),$(VENV)/.fast)

.PHONY: setup demo test test-fast lint types broker browser database cameras docs build clean

setup: $(DEV)

$(DEV) $(VENV)/.fast: $(VENV)/.%: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[$*]"
# Compile on all cores (pip uses one). Some packages contain files that are not valid Python; ignore those errors.
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	@touch $@

demo: $(ENOUGH)
	$(BIN)/patchsvdd demo --out demo

PYTEST := $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: lint types broker browser database cameras
	$(PYTEST)

# Takes a few minutes: leaves out tests with a cluster, browser, service, real images, interpreted GPU kernels, and
# other slow tests.
test-fast: setup
	$(PYTEST) --hypothesis-profile fast -m "not (ray or browser or service or real_data or interpreter or slow)"

# Programs that some tests need and are skipped without: an MQTT broker, a browser, a database, cameras. The tests start
# them, so the service that the Debian package starts is stopped.
# $(call debian,command that checks for the program,package,skipped tests,name of its service)
define debian
@PATH="$$PATH:/usr/sbin"; $(1) >/dev/null 2>&1 || { \
  command -v apt-get && { \
    if [ "$$(id -u)" = 0 ]; then as=; else as="sudo -n"; fi; \
    $$as true && export DEBIAN_FRONTEND=noninteractive && \
    { $$as apt-get install -y -qq $(2) || { $$as apt-get update -qq && $$as apt-get install -y -qq $(2); }; } \
    $(if $(4),&& $$as systemctl disable --now $(4)); \
  }; \
} >/dev/null 2>&1; $(1) >/dev/null 2>&1 || echo "$(2) could not be installed: $(3) are skipped"
endef

broker:
	$(call debian,command -v mosquitto,mosquitto,tests of MQTT,mosquitto)

browser:
	$(call debian,test -x /usr/bin/chromium,chromium,tests of the page)

database:
	$(call debian,ls /usr/lib/postgresql/*/bin/postgres,postgresql,tests with PostgreSQL,postgresql)

# PyGObject must match Debian's libraries, so it is compiled here and is no part of the extra `dev`.
CAMERAS := aravis-tools gir1.2-aravis-0.8 gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-base \
  gstreamer1.0-plugins-good gstreamer1.0-plugins-ugly libgirepository1.0-dev libcairo2-dev pkg-config gcc

cameras: setup
	$(call debian,dpkg -s $(CAMERAS),$(CAMERAS),tests of cameras,)
	@$(BIN)/python -c "import gi" 2>/dev/null \
	  || $(BIN)/pip install --quiet --constraint constraints.txt "PyGObject>=3.42,<3.51" >/dev/null 2>&1 \
	  || echo "PyGObject could not be installed: tests of cameras are skipped"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Build the documentation site into build/site. Warnings are errors.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Build the wheel and source distribution of patchsvdd and patchsvdd-runtime, and check their package descriptions.
build: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python distribution/runtime/collect.py build/runtime
	$(BIN)/python -m build --outdir dist build/runtime
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
