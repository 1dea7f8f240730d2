"""Measures `treering serve` under load, beside a server that asks the network about one photo at a time.

    python benchmarks/serving.py --photos DIR [--seconds 15] [--minutes 10] [--out benchmarks/results/serving.json]

DIR has train/<class>/<photo> and val/<class>/<photo>. The model knows all classes but one. Clients are threads of one
process, each with a connection of its own, that send one photo after the other; they share the cores with the server.
Measured are predictions a second and the 50th and 99th percentile of their times with 1, 8 and 64 clients; the same
with one client while a step is learnt; how soon ten photos of the class left out are answered rightly after they were
put into the tray; and the server's memory over minutes of photos asked and taught, pages, and refused requests.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from treering.photos import learn as photos
from treering.runtime.commit import current_commit

CLIENTS = (1, 8, 64)
TAUGHT = 10
"""The photos of the new class."""
ALONE = "import treering.server.batches as b; b.BATCH = 1; from treering import cli; cli.main()"
"""The server that asks about one photo at a time."""
SECONDS = 300.0
EVERY = 5.0
"""The seconds between two looks at the server's memory."""


class Server:
    """The command, running."""

    def __init__(self, model: Path, alone: bool = False) -> None:
        command = ["-c", ALONE] if alone else ["-m", "treering"]
        arguments = [sys.executable, *command, "serve", str(model), "--port", "0"]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        found = re.search(r"http://[^:]+:(\d+)", self.process.stdout.readline())
        assert found, "the server does not start"
        self.port = int(found[1])
        self.wait(lambda: ask(self.port, "GET", "/ready")[0] == 200)

    @staticmethod
    def wait(is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            try:
                if is_so():
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit("the server does not come to an end with what it was asked")

    def memory(self) -> float:
        """Return the megabytes that the server's own process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def end(self) -> None:
        """End the server, and wait for it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(SECONDS)


def ask(port: int, method: str, path: str, body: bytes | None = None, kind: str = "image/jpeg") -> tuple[int, Any]:
    """Return status and answer of one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request(method, path, body, {"Content-Type": kind} if body else {})
        answer = connection.getresponse()
        content = answer.read()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(content) if is_json else content
    finally:
        connection.close()


def load(port: int, name: str, files: Sequence[bytes], clients: int, seconds: float) -> list[float]:
    """Have so many clients ask for some seconds; return how long each answer took."""
    taken: list[float] = []
    start, lock = threading.Barrier(clients), threading.Lock()

    def client(number: int) -> None:
        connection, mine = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS), []
        connection.connect()
        start.wait()
        until, turn = time.monotonic() + seconds, number
        while time.monotonic() < until:
            begun = time.perf_counter()
            path = f"/api/models/{name}/predict"
            connection.request("POST", path, files[turn % len(files)], {"Content-Type": "image/jpeg"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            mine.append(time.perf_counter() - begun)
            turn += clients
        with lock:
            taken.extend(mine)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def measured(port: int, name: str, files: Sequence[bytes], clients: int, seconds: float) -> dict[str, float]:
    """Return rate and times of so many clients, which are a process of their own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        taken = sorted(pool.apply(load, (port, name, files, clients, seconds)))
    return {
        "predictions_per_second": round(len(taken) / seconds, 1),
        "p50_ms": round(1000 * statistics.median(taken), 1),
        "p99_ms": round(1000 * taken[int(0.99 * (len(taken) - 1))], 1),
    }


def teach(port: int, name: str, class_name: str, files: Sequence[bytes], effort: str) -> str:
    """Put photos into the tray and begin to learn them; return the job's name."""
    for file in files:
        status, answer = ask(port, "POST", f"/api/models/{name}/tray?class={quote(class_name)}", file)
        assert status == 200, answer
    body = json.dumps({"effort": effort}).encode()
    status, answer = ask(port, "POST", f"/api/models/{name}/jobs", body, "application/json")
    assert status == 202, answer
    job: str = answer["id"]
    return job


def has_ended(port: int, job: str) -> bool:
    """Return whether a job has ended."""
    return bool(ask(port, "GET", f"/api/jobs/{job}")[1]["ended"])


def new_class(server: Server, name: str, class_name: str, files: Sequence[bytes], test: bytes) -> dict[str, float]:
    """Teach a class; return when a photo of it was answered rightly, and how fast one client was meanwhile."""
    found: dict[str, Any] = {}
    begun = time.monotonic()
    job = teach(server.port, name, class_name, files, "usual")

    def answered() -> bool:
        said = ask(server.port, "POST", f"/api/models/{name}/predict?top=1", test)[1]
        return bool(said["predictions"][0]["classes"][0]["name"] == class_name)

    server.wait(answered)
    found["answered_rightly_after_seconds"] = round(time.monotonic() - begun, 1)
    beside, stop = [], threading.Event()

    def client() -> None:
        while not stop.is_set():
            beside.append(measured(server.port, name, [test], 1, 5.0))

    thread = threading.Thread(target=client)
    thread.start()
    server.wait(lambda: has_ended(server.port, job))
    stop.set()
    thread.join()
    whole = beside[:-1] or beside  # the last part may reach beyond the job's end
    found["seconds_of_the_job"] = round(time.monotonic() - begun, 1)
    found["p50_ms_meanwhile"] = statistics.median(part["p50_ms"] for part in whole)
    found["p99_ms_meanwhile"] = max(part["p99_ms"] for part in whole)
    return found


def mixed(server: Server, name: str, files: Sequence[bytes], minutes: float) -> dict[str, Any]:
    """Ask, teach, look and err for minutes; return the server's memory over time."""
    draw, until = random.Random(0), time.monotonic() + 60 * minutes
    sizes: list[float] = []
    counts = dict.fromkeys(("asked", "taught", "looked", "refused"), 0)

    def watch() -> None:
        while time.monotonic() < until:
            sizes.append(server.memory())
            time.sleep(EVERY)

    watching = threading.Thread(target=watch)
    watching.start()
    job: str | None = None
    while time.monotonic() < until:
        what, file = draw.random(), draw.choice(files)
        if what < 0.8:
            counts["asked"] += ask(server.port, "POST", f"/api/models/{name}/predict?nearest=3", file)[0] == 200
        elif what < 0.9:
            counts["looked"] += ask(server.port, "GET", f"/api/models/{name}")[0] == 200
        elif what < 0.99:
            counts["refused"] += (
                ask(server.port, "POST", f"/api/models/{name}/predict", file[: len(file) // 2])[0] < 500
            )
        elif job is None or has_ended(server.port, job):
            job = teach(server.port, name, f"class {draw.randrange(3)}", draw.sample(list(files), 4), "fast")
            counts["taught"] += 1
    watching.join()
    part = max(1, len(sizes) // 5)
    return {
        "minutes": minutes,
        **counts,
        "megabytes": [round(size) for size in sizes],
        "megabytes_in_the_second_fifth": round(statistics.mean(sizes[part : 2 * part])),
        "megabytes_in_the_last_fifth": round(statistics.mean(sizes[-part:])),
    }


def main() -> None:
    """Measure all; print and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    *names, left_out = sorted(path.name for path in (options.photos / "train").iterdir())
    found: dict[str, Any] = {"benchmark": "serving", "commit": current_commit(), "cores": os.cpu_count()}
    found |= {"load_average_before": round(os.getloadavg()[0], 1), "classes": len(names)}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(place / "state")
        for name in names:
            (place / "first").mkdir(exist_ok=True)
            (place / "first" / name).symlink_to((options.photos / "train" / name).resolve())
        photos.learn(place / "model", place / "first", effort="fast")
        files = [path.read_bytes() for name in names for path in sorted((options.photos / "val" / name).iterdir())[:4]]
        for what, alone in (("one at a time", True), ("batches", False)):
            server = Server(place / "model", alone)
            found[what] = {str(n): measured(server.port, "model", files, n, options.seconds) for n in CLIENTS}
            if alone:
                server.end()
            sys.stderr.write(json.dumps({what: found[what]}) + "\n")
        new = [path.read_bytes() for path in sorted((options.photos / "train" / left_out).iterdir())[:TAUGHT]]
        test = sorted((options.photos / "val" / left_out).iterdir())[0].read_bytes()
        found["new class"] = new_class(server, "model", left_out, new, test)
        sys.stderr.write(json.dumps(found["new class"]) + "\n")
        found["mixed load"] = mixed(server, "model", files, options.minutes)
        server.end()
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
