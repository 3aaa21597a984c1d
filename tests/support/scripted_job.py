"""A job's process that follows a script instead of computing: quick, and as odd as a test needs it.

The script is a list of steps, in its order or in ``script.json`` beside the folder of jobs: ``{"send": message}``;
``{"wait": file}`` until the file exists or the service asks to stop; ``{"write": file, "text": text}`` into the model's
folder; ``{"die": signal}``; ``{"exit": status}``. A second process of a job follows ``again`` if there is one.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path


def main() -> None:
    """Follow the script of the order on standard input."""
    order = json.loads(sys.stdin.readline())
    folder = Path(order["folder"])
    stopped = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        stopped.set()

    threading.Thread(target=listen, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    starts = folder / "starts"
    starts.write_text((starts.read_text() if starts.exists() else "") + f"{order['again']} {order.get('resume')}\n")
    scripts = order.get("script") or json.loads((folder.parent.parent / "script.json").read_text())
    for step in scripts["again" if "again" in scripts and len(starts.read_text().splitlines()) > 1 else "first"]:
        if "send" in step:
            print(json.dumps(step["send"]), flush=True)  # noqa: T201
        elif "wait" in step:
            while not Path(step["wait"]).exists():
                if stopped.is_set():
                    print(json.dumps({"interrupted": True}), flush=True)  # noqa: T201
                    return
                time.sleep(0.01)
        elif "write" in step:
            path = Path(order["model"]) / step["write"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step["text"])
        elif "die" in step:
            print("the last words of the process", file=sys.stderr, flush=True)  # noqa: T201
            os.kill(os.getpid(), step["die"])
        elif "exit" in step:
            sys.exit(step["exit"])


if __name__ == "__main__":
    main()
