"""A line under constant load and under faults, with real cameras' protocols, field buses and database.

    python benchmarks/line_soak.py --models TOP SIDE [--minutes 30] [--without-faults | --only-faults]

`patchsvdd run` with two views: Aravis' GigE Vision camera (software trigger, 512 x 512) and an RTSP stream. An OPC UA
and a Modbus client take turns as the PLC, and trigger the next part as soon as the line is ready. Afterwards each fault
is caused once while parts go on: camera off, stream stalled, PLC gone, bus flooded, database stopped, disk full, and
`kill -9`. Every trigger must have exactly one row in the store, with the verdict that the PLC got; a trigger that ended
in a fault on the bus must have the verdict error in the store, or no row if the process was killed before it was stored
and the PLC triggered again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import torch

from line_partners import Answer, Modbus, OpcUa, Plc, part_number
from record import RESULTS, circumstances, write_result
from serve_process import PROGRAM, machine_load
from support.cameras import FakeCamera, RtspServer, fake_camera, rtsp_server
from support.postgres import Postgres, postgres

DISK = 2048
"""Megabytes of the disk of the service."""
AROUND = 10
"""Parts before a fault is caused, and after it is over."""
CALM_SECONDS = 0.3
"""Before a fault is caused, while it is being watched."""
FLOOD_SECONDS = 5.0
OUTAGE_SECONDS = 8.0
FILE = """
name = "soak"
[models]
top = "{top}"
side = "{side}"
[source.top]
kind = "genicam"
camera = "127.0.0.1"
trigger = "software"
[source.side]
kind = "stream"
address = "{stream}"
trigger = "software"
stall = 2.0
[parts]
deadline = 2.0
timeout = 4.0
[service]
data = "{data}"
store = "{store}"
port = {port}
[opcua]
host = "127.0.0.1"
port = {opcua}
security = ["None"]
anonymous = "operate"
[modbus]
host = "127.0.0.1"
port = {modbus}
"""


class LineProcess:
    """A ``patchsvdd run`` process."""

    def __init__(self, file: Path, port: int) -> None:
        self.file, self.url = file, f"http://127.0.0.1:{port}"
        self.log = file.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*PROGRAM, "run", str(self.file)], stdout=log, stderr=log)
        end = time.monotonic() + 120
        while True:
            with suppress(OSError):
                urllib.request.urlopen(f"{self.url}/healthz", timeout=5)
                return
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the line did not start:\n{self.log.read_text()}")
            time.sleep(0.1)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Kill the process if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            return json.load(answer)

    def parts(self) -> list[dict[str, Any]]:
        """All stored parts, newest first."""
        found: list[dict[str, Any]] = []
        while True:
            before = f"&before={found[-1]['id']}" if found else ""
            page = self.get(f"/v1/parts?limit=100{before}")["parts"]
            found += page
            if len(page) < 100:
                return found


class Watcher:
    """Looks at the line's state on the page's route, and remembers its faults."""

    def __init__(self, line: LineProcess) -> None:
        self._line = line
        self.seen: list[tuple[float, str | None, str]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            try:
                state = self._line.get("/v1/line")
                found = next(_troubles(state), (None, ""))
            except Exception as error:  # noqa: BLE001  # the process was killed, or its database is down
                found = ("UNREACHABLE", type(error).__name__)
            if not self.seen or self.seen[-1][1] != found[0]:
                self.seen.append((time.monotonic(), *found))


def _troubles(state: dict[str, Any]) -> Iterator[tuple[str | None, str]]:
    """What the page shows to be wrong: the fault, then the buses."""
    if state["fault"] is not None:
        yield state["fault"]["name"], state["fault"]["text"]
    yield from (("BUS", f"{bus['kind']}: {bus['trouble']}") for bus in state["buses"] if bus["trouble"] is not None)


@contextmanager
def small_disk() -> Iterator[Path]:
    """A folder on a disk of its own."""
    folder = Path(tempfile.mkdtemp(prefix="line-disk"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)
        folder.rmdir()


class Soak:
    """The parts of a run, and what became of them."""

    def __init__(self, line: LineProcess, plcs: list[Plc]) -> None:
        self.line, self.plcs = line, plcs
        self.answers: list[Answer] = []
        self._numbers = itertools.count(1)

    def parts(self, until: Callable[[], bool]) -> list[Answer]:
        """Trigger parts, by turns over each bus, until a condition holds."""
        begun = len(self.answers)
        while not until():
            number = next(self._numbers)
            self.answers.append(self.plcs[number % len(self.plcs)].inspect(number))
        return self.answers[begun:]

    def some(self, count: int = AROUND) -> list[Answer]:
        end = len(self.answers) + count
        return self.parts(lambda: len(self.answers) >= end)

    def fault(self, name: str, cause: Callable[[], None], end: Callable[[], None], seconds: float) -> dict[str, Any]:
        """Cause a fault while parts go on, end it, and report what happened."""
        self.some()
        watcher = Watcher(self.line)

        def happen() -> None:
            time.sleep(CALM_SECONDS)
            cause()
            time.sleep(seconds)
            end()

        causing = threading.Thread(target=happen)
        start = time.monotonic()
        causing.start()
        during = self.parts(lambda: not causing.is_alive())
        over = time.monotonic()
        after = self.some()
        watcher.close()
        shown = [(round(at - start, 2), what, text[:160]) for at, what, text in watcher.seen if what]
        bad = [one for one in (*during, *after) if one.verdict not in ("good", "anomalous")]
        found = {
            "fault": name,
            "caused_after_seconds": CALM_SECONDS,
            "lasted_seconds": round(over - start, 1),
            "parts_during": len(during),
            "verdicts": dict(Counter(one.verdict or "fault on the bus" for one in (*during, *after))),
            "on_the_page": shown[:6],
            "on_the_bus": sorted({one.fault[:160] for one in bad if one.fault})[:4],
            "triggered_again": sum(one.attempts > 1 for one in (*during, *after)),
            "good_parts_after": sum(one.verdict in ("good", "anomalous") for one in after),
            "first_good_after_seconds": round(after[0].seconds, 2) if after else None,
        }
        print(json.dumps(found), flush=True)
        return found


def check(soak: Soak) -> dict[str, Any]:
    """Compare what the PLC got with what is stored."""
    stored = soak.line.parts()
    rows: dict[int, list[dict[str, Any]]] = {}
    mixed = 0
    for row in stored:
        if row["part_number"] == part_number(row["trigger_id"]):
            rows.setdefault(row["trigger_id"], []).append(row)
        else:  # the flooding client triggered between the PLC's writes of the part number and the trigger's number
            mixed += 1
    missing = [one.trigger_id for one in soak.answers if one.verdict and one.trigger_id not in rows]
    doubled = [number for number, found in rows.items() if len(found) > 1]
    different = [
        one.trigger_id
        for one in soak.answers
        if one.verdict and one.trigger_id in rows and rows[one.trigger_id][0]["verdict"] != one.verdict
    ]
    faults = [one.trigger_id for one in soak.answers if not one.verdict]
    passed = [
        number for number in faults if any(row["verdict"] in ("good", "anomalous") for row in rows.get(number, []))
    ]
    known = {one.trigger_id for one in soak.answers}
    sequences = [row["sequence"] for row in stored]
    return {
        "triggers": len(soak.answers),
        "stored": len(stored),
        "answered_but_not_stored": missing,
        "stored_twice": doubled,
        "other_verdict_in_the_store": different,
        "ended_in_a_fault_on_the_bus": len(faults),
        "of_these_stored_as_judged": passed,
        "triggered_by_the_flood_between_two_writes": mixed,
        "stored_without_trigger": [number for number in rows if number not in known],
        "sequence_repeats": len(sequences) - len(set(sequences)),
    }


def latencies(answers: list[Answer]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("opcua", "modbus"):
        seconds = sorted(one.seconds for one in answers if one.bus == name and one.verdict)
        if len(seconds) > 1:
            cuts = statistics.quantiles(seconds, n=100)
            found[name] = {
                "parts": len(seconds),
                "p50_ms": round(1000 * cuts[49], 1),
                "p99_ms": round(1000 * cuts[98], 1),
                "max_ms": round(1000 * seconds[-1], 1),
            }
    return found


def constant_load(soak: Soak, minutes: float) -> dict[str, Any]:
    """Parts without faults."""
    end = time.monotonic() + 60 * minutes
    start, begun = time.monotonic(), len(soak.answers)
    whole = soak.parts(lambda: time.monotonic() >= end)
    seconds = time.monotonic() - start
    return {
        **circumstances(torch.device("cpu")),
        "minutes": round(seconds / 60, 2),
        "parts": len(whole),
        "parts_per_minute": round(60 * len(whole) / seconds, 1),
        "verdicts": dict(Counter(one.verdict or "fault" for one in whole)),
        "trigger_to_verdict": latencies(whole),
        **{f"check_{name}": value for name, value in check(soak).items()},
        "warm_up_parts": begun,
    }


def flood(url: str, seconds: float) -> None:
    """A second client that writes Trigger as fast as it can."""
    bus = OpcUa(url)
    bus.connect()
    end = time.monotonic() + seconds
    with suppress(Exception):
        while time.monotonic() < end:
            bus.write("Trigger", True)
            bus.write("Trigger", False)
    bus.close()


def cause_faults(
    soak: Soak, camera: FakeCamera, stream: RtspServer, database: Postgres, disk: Path, opcua: str
) -> list[dict[str, Any]]:
    """Every fault, one after the other."""

    def fill() -> None:
        with (disk / "filling").open("wb") as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
                file.flush()

    def drop_plc() -> None:
        while soak.line.get("/v1/line")["state"] != "busy":
            time.sleep(0.005)
        for plc in soak.plcs:
            plc.is_away = True
            plc.bus.close()

    def let_back() -> None:
        for plc in soak.plcs:
            plc.is_away = False

    def restart() -> None:
        soak.line.kill()
        soak.line.start()

    nothing: Callable[[], None] = lambda: None  # noqa: E731
    return [
        soak.fault("camera off", camera.kill, camera.start, OUTAGE_SECONDS),
        soak.fault("stream stalls", stream.pause, stream.resume, OUTAGE_SECONDS),
        soak.fault("PLC gone in the middle of a part", drop_plc, let_back, OUTAGE_SECONDS),
        soak.fault("bus flooded", lambda: flood(opcua, FLOOD_SECONDS), nothing, 0.0),
        soak.fault("database stopped", lambda: database.stop("immediate"), database.start, OUTAGE_SECONDS),
        soak.fault("disk full", fill, lambda: (disk / "filling").unlink(), OUTAGE_SECONDS),
        soak.fault("kill -9", restart, nothing, 0.0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, nargs=2, required=True, metavar=("TOP", "SIDE"))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--without-faults", action="store_true")
    parser.add_argument("--only-faults", action="store_true", help="keep the constant load of the existing result file")
    parser.add_argument("--out", type=Path, default=RESULTS / "line-soak.json")
    options = parser.parse_args()
    code = 1
    try:
        measure(options)
        code = 0
    except BaseException:  # noqa: BLE001  # reported, and the process ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # clients of buses that were cut off may have threads left


def measure(options: argparse.Namespace) -> None:
    """Run the line under load and faults, and write the result file."""
    work = Path(tempfile.mkdtemp(prefix="line-soak"))
    ports = {"port": 18123, "opcua": 18124, "modbus": 18125}
    with (
        small_disk() as disk,
        postgres() as database,
        fake_camera() as camera,
        rtsp_server("mjpeg") as stream,
        ExitStack() as cleanup,
    ):
        file = work / "line.toml"
        top, side = (folder.resolve() for folder in options.models)
        file.write_text(
            FILE.format(top=top, side=side, stream=stream.url, data=disk / "data", store=database.url, **ports)
        )
        line = LineProcess(file, ports["port"])
        cleanup.callback(line.end)
        line.start()
        notes: list[str] = []
        url = f"opc.tcp://127.0.0.1:{ports['opcua']}"
        soak = Soak(line, [Plc(OpcUa(url), notes.append), Plc(Modbus(ports["modbus"]), notes.append)])
        load = machine_load()
        soak.some(2 * AROUND)  # engines are selected, caches filled
        if options.only_faults:
            before = json.loads(options.out.read_text())
            about = {name: before[name] for name in ("hardware", "date", "commit", "versions")}
            calm = {**about, **before["constant_load"]}
        else:
            calm = constant_load(soak, options.minutes)
            print(json.dumps(calm), flush=True)
        faults = [] if options.without_faults else cause_faults(soak, camera, stream, database, disk, url)
        state = line.get("/v1/line")
        result = {
            **circumstances(torch.device("cpu")),
            "command": " ".join(["python", "benchmarks/line_soak.py", "--minutes", f"{options.minutes:g}"]),
            "machine_load_before": load,
            "views": {"top": "GenICam 512x512 Mono8, software trigger", "side": "RTSP MJPEG 160x120, 25 per second"},
            "constant_load": calm,
            "faults": faults,
            "everything": check(soak),
            "sources": state["sources"],
            "seed": 0,
        }
        for plc in soak.plcs:
            plc.bus.close()
        result["exit_code"] = line.stop()
        log = line.log.read_text()
        result["log_lines"] = Counter(
            re.sub(r"\d+", "n", one[20:])[:100] for one in log.splitlines() if re.match(r"\d{4}-", one)
        ).most_common(60)
        write_result(options.out, result)
        print(json.dumps(result["everything"]))
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
