"""Anything at all, sent to every route."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from support.line import lined
from support.mutated_images import KINDS, mutated
from support.serving import Running, children, copy_model, memory_of, part, running, settings

pytestmark = pytest.mark.service

IMAGES = 200
EXAMPLES = 12
"""Requests made up for each route."""
CHECKS = [not_a_server_error, response_schema_conformance, content_type_conformance]


@pytest.fixture(scope="module")
def server(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("fuzz")
    model = copy_model(stored, folder / "part")  # requests may change it
    with running(settings(folder / "data", model)) as found, lined(found.service, "part", [{"top": part()}]) as line:
        line.part()
        yield found


def paths() -> list[str]:
    """Method and path of every route, without a service."""
    from patchsvdd.apps.serve.routes import ROUTERS

    found = []
    for route in (route for router in ROUTERS for route in router.routes):
        found += [f"{method} {route.path}" for method in sorted(getattr(route, "methods", ()))]
    return found


@pytest.fixture(scope="module")
def schema(server: Running) -> Any:
    return schemathesis.openapi.from_dict(server.app.openapi())


@pytest.mark.parametrize("route", paths())
def test_requests_that_are_made_up(server: Running, schema: Any, route: str) -> None:
    method, path = route.split()
    known = server.inspect("part", part()).json()["id"]
    operation = schema[path][method]
    seen: Counter[int] = Counter()

    @hypothesis.settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        if sum(seen.values()) % 2:  # half of them about something that is there
            case.path_parameters = {**(case.path_parameters or {})}
            if "name" in case.path_parameters:
                case.path_parameters["name"] = "part"
            if "view" in case.path_parameters:
                case.path_parameters["view"] = "top"
            if "number" in case.path_parameters and "/parts/" in path:
                case.path_parameters["number"] = server.service.store.parts(1)[0]["id"]
            if "number" in case.path_parameters and "/inspections/" in path:
                case.path_parameters["number"] = known
        answer = case.call(base_url=server.url, timeout=60)
        seen[answer.status_code] += 1
        if answer.status_code != 503:
            case.validate_response(answer, checks=CHECKS)
        assert answer.status_code not in (500, 502, 504)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == ["application/problem+json"]

    ask()
    assert sum(seen.values()) >= 1


def test_mutated_images_are_answered(server: Running) -> None:
    server.inspect("part", part())
    before = set(children(os.getpid()))
    start = memory_of()
    seen: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    for seed in range(IMAGES):
        kind, data = mutated(seed)
        answer = server.inspect("part", data)
        assert answer.status_code in (200, 422), (kind, seed, answer.text)
        if kind == "good":
            assert answer.status_code == 200, answer.text
        if kind in ("markup", "other_format"):
            assert answer.status_code == 422
        seen[answer.status_code] += 1
        kinds[kind] += 1
    assert seen[200] > 20
    assert seen[422] > 60
    assert set(kinds) == {kind.__name__ for kind in KINDS}
    assert memory_of() - start < 300e6
    assert len(set(children(os.getpid())) - before) <= 2
    assert server.inspect("part", part()).status_code == 200
