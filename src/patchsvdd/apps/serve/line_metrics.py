"""Prometheus metrics of the running line, read from its state when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from patchsvdd.apps.serve.line_view import LineFacts

COUNTS = {
    "frames": "Images of a source.",
    "dropped": "Images of a source for which there was no room in the queue.",
    "lost": "Images that the camera or the network lost.",
    "late": "Images that came after their part was answered.",
    "reconnects": "Times that a source was opened again.",
}


class LineMetrics(Collector):
    """What the sources and buses of a line do."""

    def __init__(self, state: Callable[[], LineFacts | None]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """The metrics; none while the service runs no line."""
        found = self._state()
        if found is None:
            return
        line = found["name"]
        working = GaugeMetricFamily("patchsvdd_line_up", "Whether a line accepts parts.", labels=["line"])
        working.add_metric([line], float(found["state"] in ("ready", "busy")))
        yield working
        labels = ["line", "source"]
        up = GaugeMetricFamily("patchsvdd_source_up", "Whether a source is running.", labels=labels)
        rate = GaugeMetricFamily("patchsvdd_source_frames_per_second", "Images per second of a source.", labels=labels)
        counts = {
            name: CounterMetricFamily(f"patchsvdd_source_{name}", words, labels=labels)
            for name, words in COUNTS.items()
        }
        for source in found["sources"]:
            at = [line, source["name"]]
            up.add_metric(at, float(source["state"] == "running"))
            rate.add_metric(at, source["frames_per_second"])
            for name, family in counts.items():
                family.add_metric(at, source[name])  # type: ignore[literal-required]
        yield from (up, rate, *counts.values())
        labels = ["line", "kind", "address"]
        works = GaugeMetricFamily("patchsvdd_bus_up", "Whether a field bus works.", labels=labels)
        clients = GaugeMetricFamily("patchsvdd_bus_clients", "Clients connected to a field bus.", labels=labels)
        for bus in found["buses"]:
            at = [line, bus["kind"], bus["address"]]
            works.add_metric(at, float(bus["trouble"] is None))
            clients.add_metric(at, bus["clients"])
        yield from (works, clients)
