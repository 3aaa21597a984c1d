"""The routes. Each declares the role it requires; ``tests/apps/serve/test_serve_security.py`` checks all of them."""

from __future__ import annotations

from patchsvdd.apps.serve.routes import health, history, jobs, models, overview, reports, samples, sessions
from patchsvdd.apps.serve.routes import inspect as inspecting
from patchsvdd.apps.serve.routes import review as reviewing

ROUTERS = tuple(
    part.router for part in (inspecting, overview, models, history, reviewing, samples, jobs, reports, sessions, health)
)
