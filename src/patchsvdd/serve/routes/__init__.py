"""The routes. Each declares who may call it; ``tests/test_serve_security.py`` walks them all."""

from __future__ import annotations

from patchsvdd.serve.routes import health, history, inspecting, jobs, models, reviewing, sessions

ROUTERS = tuple(part.router for part in (inspecting, models, history, reviewing, jobs, sessions, health))
