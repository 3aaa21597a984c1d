"""The routes. Each declares the role it requires; ``tests/apps/serve/test_serve_security.py`` checks all of them."""

from __future__ import annotations

from patchsvdd.apps.serve.routes import (
    audit,
    candidates,
    drawings,
    health,
    history,
    jobs,
    line,
    models,
    overview,
    people,
    reports,
    samples,
    sessions,
    thresholds,
)
from patchsvdd.apps.serve.routes import inspect as inspecting
from patchsvdd.apps.serve.routes import review as reviewing

PARTS = (
    *(inspecting, overview, line, models, candidates, thresholds, history, reviewing, drawings, samples, jobs),
    *(reports, sessions, people, audit, health),
)
ROUTERS = tuple(part.router for part in PARTS)
