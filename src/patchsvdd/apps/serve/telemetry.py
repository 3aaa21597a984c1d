"""Prometheus metrics of the service."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE_LATEST
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Telemetry:
    """The metrics of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "patchsvdd_requests", "Answered requests.", ["route", "method", "status"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "patchsvdd_request_seconds", "Duration of a request.", ["route"], buckets=SECONDS, registry=self.registry
        )
        self.inspections = Counter(
            "patchsvdd_inspections", "Stored inspections.", ["model", "verdict"], registry=self.registry
        )
        self.scores = Histogram(
            "patchsvdd_score_ratio",
            "Score as a multiple of the threshold.",
            ["model"],
            buckets=(0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0),
            registry=self.registry,
        )
        self.stage_seconds = Histogram(
            "patchsvdd_stage_seconds", "Duration of one stage.", ["stage"], buckets=SECONDS, registry=self.registry
        )
        self.batch_images = Histogram(
            "patchsvdd_batch_images",
            "Images per batch.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self.registry,
        )
        self.parts = Counter("patchsvdd_parts", "Stored parts of a line.", ["line", "verdict"], registry=self.registry)
        self.part_seconds = Histogram(
            "patchsvdd_part_seconds",
            "From the trigger of a part to its stored verdict.",
            ["line"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.waiting = Gauge("patchsvdd_images_in_flight", "Images accepted, not yet answered.", registry=self.registry)
        self.refused = Counter("patchsvdd_refused", "Rejected images, by reason.", ["reason"], registry=self.registry)
        self.sign_ins = Counter(
            "patchsvdd_sign_ins",
            "Sign-ins: ok, failed, refused (too many have failed); and requests with a wrong key (wrong-key).",
            ["result"],
            registry=self.registry,
        )
        self.shadow = Counter(
            "patchsvdd_shadow",
            "Images offered to candidates that were inspected (stored), dropped from the backlog, or failed.",
            ["model", "outcome"],
            registry=self.registry,
        )
        self.reloads = Counter("patchsvdd_model_reloads", "Reloads of a model.", ["model"], registry=self.registry)

    def page(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return bytes(generate_latest(self.registry))
