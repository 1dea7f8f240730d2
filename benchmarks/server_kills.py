"""Kills `treering serve` in the middle of jobs, starts it again, and looks whether anything is lost.

    python benchmarks/server_kills.py [--kills 20] [--seed 0] [--out benchmarks/results/server_kills.json]

Each trial teaches a copy of a small model a new class by a job that trains. At a random moment the server is killed
with SIGKILL, and its model must be whole at once: as it was before the job, as it was solved, or as it was trained. A
server that is started again must finish the job by itself, with the weights, bit for bit, of a job that nobody
disturbed; no photo may be left over.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from treering import model as models
from treering.photos import learn as photos
from treering.runtime.commit import current_commit
from treering.storage import check, manifest

SECONDS = 120.0
"""The most seconds that anything may take here."""
BEFORE = 0.25
"""The share of the moments that lie before the training; the others are spread over it."""
SIDE = 20
CHANGES = (
    *("method=tuned", "augmentation.kind=photo", "training.shape=cosine", "balanced.shape=cosine", "training.lr=0.01"),
    *("optimizer.kind=adam", "optimizer.clip=1", "optimizer.reset_momentum=false", "optimizer.decay=plain"),
    *(
        "training.epochs=150",
        "training.drop_at=[]",
        "training.most_images=0",
        "balanced.epochs=50",
        "balanced.drop_at=[]",
    ),
    *("augmentation.crop_size=16", f"run.image_size={SIDE}", "optimizer.batch_size=8"),
)


class Server:
    """The command, running."""

    def __init__(self, model: Path) -> None:
        command = [sys.executable, "-m", "treering", "serve", str(model), "--port", "0", "--device", "cpu"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if not found:
            raise SystemExit(f"the server does not start: {line}")
        self.address = found[0].rstrip("/")

    def ask(self, path: str, body: bytes | None = None, kind: str = "application/octet-stream") -> Any:
        """Return the answer to a request; the server may take a moment until it listens."""
        until = time.monotonic() + SECONDS
        while True:
            try:
                request = urllib.request.Request(self.address + path, body, {"Content-Type": kind} if body else {})
                with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError:
                raise
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def finish(self, job: str) -> dict[str, Any]:
        """Return a job once it has ended."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            found: dict[str, Any] = self.ask(f"/api/jobs/{job}")
            if found["ended"]:
                return found
            time.sleep(0.1)
        raise SystemExit(f"a job does not end: {found}")

    def end(self, sign: int) -> None:
        """Send a signal, and wait until the server has ended."""
        self.process.send_signal(sign)
        self.process.wait(SECONDS)


def make_photos(folder: Path, name: str, count: int, seed: int) -> Path:
    """Write noisy photos of one pattern."""
    random_pixels = np.random.RandomState(seed)
    pattern = random_pixels.randint(40, 216, (SIDE, SIDE, 3))
    (folder / name).mkdir(parents=True)
    for number in range(count):
        noisy = (pattern + random_pixels.randint(-60, 61, pattern.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / name / f"{number}.png")
    return folder / name


def digest(model: Path) -> str:
    """Return what a model has learnt, its weights and its exemplars, as a digest."""
    found = manifest.of(model)
    content = [found.files.weights.sha256, *(entry.sha256 for ranked in found.files.memory for entry in ranked)]
    return hashlib.sha256("".join(content).encode()).hexdigest()


def begin(server: Server, name: str, files: list[Path]) -> str:
    """Put photos into the tray and begin to learn them; return the job's name."""
    for file in files:
        server.ask(f"/api/models/{name}/tray?class=owl", file.read_bytes())
    job: str = server.ask(f"/api/models/{name}/jobs", b'{"effort": "usual"}', "application/json")["id"]
    return job


def disturbed(model: Path, files: list[Path], share: float, seconds: float, wanted: dict[str, str]) -> dict[str, Any]:
    """Kill the server once, `share` of the way through a job; return what was left and what came of it."""
    server = Server(model)
    server.ask("/health")
    job = begin(server, model.name, files)
    if share < BEFORE:
        time.sleep(share * seconds)
    told = server.ask(f"/api/jobs/{job}")
    while share >= BEFORE and not told["ended"]:
        if told["stage"] == "training" and told["done"] >= told["total"] * (share - BEFORE) / (1 - BEFORE):
            break
        told = server.ask(f"/api/jobs/{job}")
    stage = told["stage"]
    server.end(signal.SIGKILL)
    left = digest(model)
    trial: dict[str, Any] = {"killed while": stage, "wrong": []}
    trial["left"] = next((what for what, known in wanted.items() if known == left), "another model")
    if trial["left"] == "another model":
        trial["wrong"].append("the model is none of those it may be")
    if check.check(model, models.examine).problems:
        trial["wrong"].append("the model is not whole")
    server = Server(model)
    ended = server.finish(job)
    if ended["state"] != "done":
        trial["wrong"].append(f"the job has not been done: {ended['error']}")
    if digest(model) != wanted["trained"]:
        trial["wrong"].append("the job came to something else than one that nobody disturbed")
    if server.ask(f"/api/models/{model.name}/tray")["photos"]:
        trial["wrong"].append("photos are left in the tray")
    server.end(signal.SIGTERM)
    if check.check(model, models.examine).problems or check.check(model, models.examine).leftovers:
        trial["wrong"].append("something is left over")
    return trial


def main() -> None:
    """Run the trials; print and write a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(place / "state")
        for seed, name in enumerate(("cat", "dog")):
            make_photos(place / "first", name, 12, seed)
        files = sorted(make_photos(place / "more", "owl", 12, 2).iterdir())
        photos.learn(place / "whole", place / "first", backbone="small", memory=8, changes=CHANGES, device="cpu")
        wanted = {"before": digest(place / "whole")}
        shutil.copytree(place / "whole", place / "calm")
        server = Server(place / "calm")
        server.ask("/health")
        begun = time.monotonic()
        job = begin(server, "calm", files)
        while not server.ask(f"/api/jobs/{job}")["solved"]:
            time.sleep(0.05)
        wanted["solved"] = digest(place / "calm")
        server.finish(job)
        seconds = time.monotonic() - begun
        server.end(signal.SIGTERM)
        wanted["trained"] = digest(place / "calm")
        draw, trials = random.Random(options.seed), []
        for number in range(options.kills):
            model = Path(shutil.copytree(place / "whole", place / f"model-{number}"))
            share = (number + draw.random()) / options.kills  # the moments are spread over the whole job
            trials.append({"share": round(share, 3), **disturbed(model, files, share, seconds, wanted)})
            sys.stderr.write(json.dumps(trials[-1]) + "\n")
    summary = {
        "benchmark": "server_kills",
        "commit": current_commit(),
        "kills": len(trials),
        "wrong": sum(bool(trial["wrong"]) for trial in trials),
        "killed while": Counter(trial["killed while"] for trial in trials),
        "left": Counter(trial["left"] for trial in trials),
        "seconds_of_a_job": round(seconds, 1),
        "trials": trials,
    }
    if options.out:
        options.out.write_text(json.dumps(summary, indent=1) + "\n")
    sys.stdout.write(json.dumps({**summary, "trials": None}) + "\n")
    sys.exit(bool(summary["wrong"]))


if __name__ == "__main__":
    main()
