"""Requests made at random from the server's own description: none breaks the server, and the model stays whole.

    PYTHONPATH=src PYTHON_WITH_SCHEMATHESIS benchmarks/fuzz_server.py [--requests 5000] [--seed 0]
        [--python PYTHON_WITH_TREERING] [--out benchmarks/results/fuzz_server.json]

`treering serve` runs in a process of `--python`, with a folder of models one of which has learnt three classes.
Requests are made of every operation of /openapi.json, with values that fit the description and with others. Most of
them name the model, classes, photos and jobs that there are, and half of those that take photos bring some, so that
trays are filled and learnt meanwhile. A finding is an answer with a 5xx status other than what the description allows,
an answer that does not fit the description, a server that is gone or large, or a model that is not whole. Needs
schemathesis 4, which may be in an environment of its own: this file needs nothing else. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from treering.runtime.commit import current_commit

NEW = [
    *("--backbone", "small", "--memory", "6", "--device", "cpu"),
    *("--set", "training.epochs=1", "--set", "training.drop_at=[]"),
    *("--set", "balanced.epochs=1", "--set", "balanced.drop_at=[]"),
    *("--set", "augmentation.crop_size=16", "--set", "run.image_size=20", "--set", "optimizer.batch_size=8"),
]
MODEL, CLASSES, OTHERS = "pets", ("cat", "dog", "owl"), ("bee", "fox")
SECONDS = 120.0
"""The seconds that one answer may take, those of a job that is watched included."""
MOST_MEMORY = 2**31
STEERING = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
ENDED = (0, -signal.SIGTERM)
"""The exit codes of a server that was told to end."""
OFTEN = 6
SELDOM = {
    **{"DELETE /api/models/{model}/tray": 1, "DELETE /api/jobs/{job}": 1, "POST /api/models/{model}/undo": 2},
    **{"POST /api/models/{model}/forget": 2, "POST /api/models/{model}/merge": 2, "POST /api/models": 2},
}
"""How many requests of an operation are made in its turn; those that take away what others bring come seldom."""
MEANT = ("503 GET /ready",)
"""The answers with a 5xx status that mean no error."""


def photo(draw: random.Random, side: int = 24) -> bytes:
    """Return a PNG file of noise around a colour."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    colour = draw.randrange(200)
    rows = b"".join(b"\0" + bytes(colour + draw.randrange(56) for _ in range(3 * side)) for _ in range(side))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def learnt(python: str, place: Path, draw: random.Random) -> Path:
    """Return a folder of models with one that has learnt the classes."""
    for name in CLASSES:
        (place / "photos" / name).mkdir(parents=True)
        for number in range(6):
            (place / "photos" / name / f"{number}.png").write_bytes(photo(draw))
    command = [python, "-m", "treering", "learn", str(place / "models" / MODEL), str(place / "photos"), *NEW]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return place / "models"


class Server:
    """The server's process."""

    def __init__(self, python: str, models: Path, log: Path) -> None:
        self.log = log
        command = [python, "-m", "treering", "serve", str(models), "--port", "0", "--device", "cpu"]
        self.process = subprocess.Popen(
            [*command, "--label-studio", "http://127.0.0.1:9"],  # nobody listens there
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )
        assert self.process.stdout
        found = re.search(r"http://[^/\s]+", self.process.stdout.readline())
        if not found:
            sys.exit(f"the server does not start: {log.read_text()}")
        self.address = found[0]

    def memory(self) -> int:
        """Return the most bytes of memory that the process has had."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0

    def end(self) -> int:
        """End the server; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return -1


class Fuzzer:
    """Makes requests and counts what comes of them."""

    def __init__(self, server: Server, draw: random.Random) -> None:
        self.server, self.draw = server, draw
        self.session: Any = importlib.import_module("requests").Session()
        self.requests, self.photos, self.slowest = 0, 0, 0.0
        self.classes = [*CLASSES, *OTHERS]
        self.statuses: dict[str, Counter[str]] = defaultdict(Counter)
        self.findings: dict[str, dict[str, Any]] = {}

    def known(self) -> dict[str, str]:
        """Return names of what there is, at random: a model, a photo that waits, a kept one, and a job."""
        found, self.classes = {"model": MODEL}, [*CLASSES, *OTHERS]
        try:
            model = self.session.get(f"{self.server.address}/api/models/{MODEL}", timeout=SECONDS).json()
            jobs = self.session.get(f"{self.server.address}/api/jobs", timeout=SECONDS).json()["jobs"]
        except (OSError, ValueError, KeyError):
            return found
        self.classes = [*(each["name"] for each in model["classes"]), *self.classes[-len(OTHERS) :]]
        waiting = [one["id"] for each in model["tray"]["classes"] for one in each["photos"]]
        kept = [url for each in model["classes"] for url in each["exemplars"]]
        found |= {"number": self.draw.choice(waiting)} if waiting else {}
        found |= {"digest": self.draw.choice(kept).rpartition("/")[2].removesuffix(".png")} if kept else {}
        found |= {"job": self.draw.choice(jobs)["id"]} if jobs else {}
        return found

    def ask(self, case: Any) -> None:
        """Make one request, and look at what is answered."""
        operation = f"{case.method} {case.path}"
        if self.draw.random() < 0.7 and case.path_parameters:
            known = self.known()
            case.path_parameters = {name: known.get(name, old) for name, old in case.path_parameters.items()}
        sent = case.as_transport_kwargs(base_url=self.server.address)
        if case.method == "POST" and case.path.endswith(("/tray", "/api/models/{model}/predict")):
            sent = self._with_photos(sent) if self.draw.random() < 0.5 else sent
        elif isinstance(case.body, dict) and self.draw.random() < 0.3:
            sent = self._with_classes(sent, case.body)
        begun = time.monotonic()
        try:
            answer = self.session.request(**sent, timeout=SECONDS)
        except (OSError, ValueError) as error:  # of the client's own, where no request can be made of what was drawn
            self.statuses[operation][type(error).__name__] += 1
            gone = self.server.process.poll() is not None
            if gone or "Timeout" in type(error).__name__ or "Connection" in type(error).__name__:
                self.find(f"{operation}: {'the server is gone' if gone else type(error).__name__}")
            return
        self.requests += 1
        self.slowest = max(self.slowest, time.monotonic() - begun)
        self.statuses[operation][str(answer.status_code)] += 1
        if answer.status_code >= 500 and f"{answer.status_code} {operation}" not in MEANT:
            self.find(
                f"{operation}: {answer.status_code}",
                f"{answer.request.url} {answer.request.body!r:.500}: {answer.text}",
            )
        self._require_fitting(operation, case, answer)

    def _with_photos(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Return a request with photos in place of its body, mostly of a class that there may be."""
        sent = {name: value for name, value in sent.items() if name not in ("data", "files", "json")}
        kind = "Content-Type"
        sent["headers"] = {name: value for name, value in (sent.get("headers") or {}).items() if name.title() != kind}
        if self.draw.random() < 0.7:
            sent["params"] = dict(sent.get("params") or {}) | {"class": self.draw.choice(self.classes)}
        count = self.draw.choice([1, 1, 2, 5])
        self.photos += count
        if count == 1:
            sent["headers"][kind] = "image/png"
            return sent | {"data": photo(self.draw)}
        return sent | {"files": [("photo", (f"{number}.png", photo(self.draw))) for number in range(count)]}

    def _with_classes(self, sent: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        """Return a request whose words are classes that there may be."""
        changed: dict[str, Any] = {}
        for name, value in body.items():
            word = self.draw.choice(self.classes)
            changed[name] = word if isinstance(value, str) and name != "effort" else value
            changed[name] = [word] if name == "classes" else changed[name]
        sent = {name: value for name, value in sent.items() if name not in ("data", "files")}
        return sent | {"json": changed}

    def _require_fitting(self, operation: str, case: Any, answer: Any) -> None:
        """Take note of an answer that is not as the description has it, or of a refusal without a reason."""
        checks = importlib.import_module("schemathesis.checks")
        described = importlib.import_module("schemathesis.specs.openapi.checks")
        failures = importlib.import_module("schemathesis.core.failures")
        required = [described.status_code_conformance, described.content_type_conformance]
        required += [described.response_schema_conformance, checks.not_a_server_error]
        required = required[: 3 + (f"{answer.status_code} {operation}" not in MEANT)]
        try:
            case.validate_response(answer, checks=required)
        except (failures.Failure, failures.FailureGroup) as group:
            for one in getattr(group, "exceptions", [group]):
                self.find(f"{operation}: {answer.status_code}: {type(one).__name__}", str(one))
        if answer.status_code >= 400 and answer.request.method != "HEAD":
            try:
                told = answer.json()
                good = told == {"ready": False} or (list(told) == ["error"] and not STEERING.search(told["error"]))
            except (ValueError, TypeError, AttributeError):
                good = False
            if not good:
                self.find(f"{operation}: {answer.status_code}: no reason in one line", answer.text)

    def find(self, what: str, first: str = "") -> None:
        """Take note of a finding, with what it was about the first time."""
        self.findings.setdefault(what, {"times": 0, "first": first[:1500]})["times"] += 1


def fuzz(fuzzer: Fuzzer, wanted: int, seed: int) -> None:
    """Make so many requests or more, of all operations in turns, so that each meets the traces of the others."""
    schemathesis: Any = importlib.import_module("schemathesis")
    hypothesis: Any = importlib.import_module("hypothesis")
    schema = schemathesis.openapi.from_url(f"{fuzzer.server.address}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    turns = [(operation, mode) for operation in operations for mode in schemathesis.GenerationMode]
    rounds = 0
    while fuzzer.requests < wanted and fuzzer.server.process.poll() is None:
        fuzzer.draw.shuffle(turns)
        for operation, mode in turns:
            settings = hypothesis.settings(
                max_examples=SELDOM.get(operation.label, OFTEN),
                database=None,
                deadline=None,
                phases=[hypothesis.Phase.generate],
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            ask = hypothesis.given(operation.as_strategy(generation_mode=mode))(lambda case: fuzzer.ask(case))
            with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # nothing can be asked wrongly
                hypothesis.seed(seed + 1000 * rounds)(settings(ask))()
        rounds += 1
        sys.stderr.write(f"{fuzzer.requests} requests, {len(fuzzer.findings)} findings\n")


def main() -> None:
    """Make the requests, write what came of them, and fail if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", default=sys.executable, help="the Python that has treering with its server")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        schemathesis = importlib.import_module("schemathesis")
    except ImportError:
        sys.exit("this needs schemathesis 4: pip install 'schemathesis>=4,<5' into an environment, and use its Python")
    draw, commit = random.Random(options.seed), current_commit()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(place / "state")
        models = learnt(options.python, place, draw)
        server = Server(options.python, models, place / "log")
        begun = time.monotonic()
        fuzzer = Fuzzer(server, draw)
        try:
            fuzz(fuzzer, options.requests, options.seed)
            spent, memory, alive = time.monotonic() - begun, server.memory(), server.process.poll() is None
            jobs = Counter(one["state"] for one in fuzzer.session.get(f"{server.address}/api/jobs").json()["jobs"])
        finally:
            code = server.end()
        command = [options.python, "-m", "treering", "check", str(models / MODEL)]
        whole = subprocess.run(command, capture_output=True, text=True, check=False)
        log = server.log.read_text()
    statuses = {name: dict(sorted(counts.items())) for name, counts in sorted(fuzzer.statuses.items())}
    for good, what in (
        (alive and code in ENDED, f"the server ended with {code}"),
        (memory < MOST_MEMORY, f"the server took {memory} bytes"),
        (whole.returncode == 0, f"the model is not whole: {whole.stdout}{whole.stderr}"),
        ("Traceback" not in log, f"{log.count('Traceback')} tracebacks in the log: {log[-1500:]}"),
    ):
        if not good:
            fuzzer.find(what)
    facts = {
        "benchmark": "fuzz_server",
        "commit": commit,
        "schemathesis": schemathesis.__version__,
        "seed": options.seed,
        "requests": fuzzer.requests,
        "operations": len(statuses),
        "photos": fuzzer.photos,
        "jobs": dict(jobs),
        "server_errors": sum(
            count
            for name, counts in statuses.items()
            for status, count in counts.items()
            if status.startswith("5") and f"{status} {name}" not in MEANT
        ),
        "most_memory": memory,
        "seconds": round(spent),
        "slowest": round(fuzzer.slowest, 1),
        "model_is_whole": whole.returncode == 0,
        "statuses": statuses,
        "findings": fuzzer.findings,
    }
    print(json.dumps(facts, indent=1))  # noqa: T201
    if options.out:
        options.out.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(bool(fuzzer.findings))


if __name__ == "__main__":
    main()
