"""Small models, and the ways in which `fuzz_models.py` changes them as a stranger might."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import socket
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Json = Any
Change = Callable[["Mutant"], str]


class Mutant:
    """A copy of a model folder, and the random numbers by which it is changed."""

    def __init__(self, path: Path, draw: random.Random, outside: Path) -> None:
        self.path, self.draw, self.outside = path, draw, outside

    def files(self, *patterns: str) -> list[Path]:
        """Return the regular files that fit one of the patterns, or all."""
        found = {file for pattern in patterns or ("**/*",) for file in self.path.glob(pattern)}
        return sorted(file for file in found if not file.is_symlink() and file.is_file())

    def any_file(self, *patterns: str) -> Path:
        """Return a file that an earlier change has not made too large to be read."""
        files = [file for file in self.files(*patterns) if file.stat().st_size < 2**27]
        if not files:  # in their place may be a link to a device that never ends
            raise FileNotFoundError(f"no file of {patterns} is left")
        return self.draw.choice(files)

    def manifest_file(self) -> Path:
        return self.any_file("manifest.json", "manifest.json", "previous/*.json")

    def reseal(self, file: Path, manifest: Json) -> None:
        """Write a manifest with a right checksum."""
        if isinstance(manifest, dict):
            manifest.pop("checksum", None)
            digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
            manifest = {"checksum": digest, **manifest}
        file.write_text(json.dumps(manifest), encoding="utf-8", errors="surrogatepass")

    def put(self, name: str, content: bytes) -> None:
        """Replace a file that manifests name by other content, with right names and checksums."""
        digest = hashlib.sha256(content).hexdigest()
        prefix, dot, suffix = name.rpartition("-")[0], "-", name.rpartition(".")[2]
        other = f"{prefix}{dot}{digest[:12]}.{suffix}"
        (self.path / name).unlink()
        (self.path / other).write_bytes(content)
        for file in self.files("manifest.json", "previous/*.json"):
            with contextlib.suppress(ValueError):
                text = file.read_bytes().decode("utf-8", "surrogatepass")
                manifest = json.loads(text)
                for entry in _entries(manifest):
                    if entry.get("name") == name:
                        entry.update(name=other, sha256=digest)
                self.reseal(file, manifest)


def _entries(value: Json) -> Iterator[dict[str, Json]]:
    if isinstance(value, dict):
        if "sha256" in value:
            yield value
        for part in value.values():
            yield from _entries(part)
    elif isinstance(value, list):
        for part in value:
            yield from _entries(part)


# Values


def _odd(draw: random.Random, before: Json) -> Json:
    """Return a value that does not belong there."""
    deep: Json = 1
    for _ in range(draw.choice([50, 90, 150, 5000])):
        deep = [deep]
    values: list[Json] = [
        None, True, -1, 0, 1, 2, 3, 99, 10**6, 2**31, 2**53, 2**63, 10**30, 10**400, 0.5, -0.5, 1e-300, 1e300, 1e308,
        float("nan"), float("inf"), -float("inf"), "", "x", "\x1b[31m", "\u202e", "a\nb", "\0", "\ud800", "../x",
        "/etc/passwd", "C:\\x", "x" * 10**5, [], [[]], [None], [1, 2], {}, {"x": 1}, [0] * 1000, [{}] * 1000,
        "custom", "resnet18", "small", "eeil", "icarl", "gem", "closed-form", "joint", "lwf-mc", "timm:\x1bx",
        "timm:hf-hub:x/y", "torchvision:resnet50", "cuda", "none", "per-step", "total", "2026-01-01", "0001-01-01",
    ]  # fmt: skip
    if draw.random() < 0.2:
        return deep if draw.random() < 0.3 else [before, before]
    if isinstance(before, bool | int | float) and draw.random() < 0.4:
        return draw.choice([before + 1, before - 1, before * 2, -before, before * 10**6, str(before), float(before)])
    if isinstance(before, str) and draw.random() < 0.4:
        return draw.choice([before + "x", before[:-1], before.upper(), before + "\n", "./" + before, before * 2])
    return draw.choice(values)


def _places(value: Json, found: list[tuple[Json, Json]]) -> list[tuple[Json, Json]]:
    """Return every container with every key in it; long lists of images count by their first ones."""
    items: list[tuple[Json, Json]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))[:3]
    for key, part in items:
        found.append((value, key))
        _places(part, found)
    return found


def _mutate(value: Json, draw: random.Random) -> str:
    """Change one value somewhere in a JSON value; return what was changed."""
    container, key = draw.choice(_places(value, []) or [({}, "")])
    kind = draw.choice(["other", "other", "other", "remove", "double", "add", "swap"])
    if kind == "remove" and key in (container if isinstance(container, dict) else range(len(container))):
        del container[key]
    elif kind == "double" and isinstance(container, list):
        container.append(container[key])
    elif kind == "add" and isinstance(container, dict):
        container[draw.choice(["extra", "\x1b[2J", "x" * 5000, "__metadata__"])] = _odd(draw, None)
    elif kind == "swap" and isinstance(container, list):
        container.reverse()
    else:
        kind = "other"
        container[key] = _odd(draw, container[key] if key in container or isinstance(container, list) else None)
    return f"{kind} {str(key)[:40]!r}"


# Changes


def change_bytes(mutant: Mutant) -> str:
    """Change bytes of any file, whose checksum is wrong then."""
    file, draw = mutant.any_file(), mutant.draw
    content = bytearray(file.read_bytes())
    kind = draw.choice(["flip", "cut", "empty", "insert", "zero", "append"])
    at = draw.randrange(len(content) + 1)
    if kind == "flip" and content:
        content[at % len(content)] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del content[at:]
    elif kind == "empty":
        content.clear()
    elif kind == "insert":
        content[at:at] = draw.randbytes(draw.choice([1, 8, 1000]))
    elif kind == "zero":
        content[at : at + 50] = bytes(len(content[at : at + 50]))
    else:
        content += draw.choice([b"\0", b"\n", b"{}", draw.randbytes(100)])
    file.write_bytes(content)
    return f"{kind} {file.relative_to(mutant.path)}"


def change_manifest(mutant: Mutant) -> str:
    """Change values of a manifest and give it a right checksum."""
    file = mutant.manifest_file()
    manifest = json.loads(file.read_bytes())
    done = [_mutate(manifest, mutant.draw) for _ in range(mutant.draw.choice([1, 1, 2]))]
    with contextlib.suppress(RecursionError):
        mutant.reseal(file, manifest)
    return f"{file.name}: {'; '.join(done)}"


def change_recipe(mutant: Mutant) -> str:
    """Change settings in a manifest."""
    file = mutant.path / "manifest.json"
    manifest = json.loads(file.read_bytes())
    done = _mutate(manifest["recipe"], mutant.draw)
    with contextlib.suppress(RecursionError):
        mutant.reseal(file, manifest)
    return f"recipe: {done}"


def write_absurd_json(mutant: Mutant) -> str:
    """Replace a manifest or a history by JSON that is absurd."""
    texts = {
        "deep": b"[" * 10**6, "closed": b"[" * 10**5 + b"]" * 10**5, "tables": b'{"a":' * 10**5, "null": b"null",
        "number": b"9" * 10**6, "text": b'"' + b"x" * 10**6, "quotes": b'"' + b'\\"' * 10**6,
        "utf-16": "{}".encode("utf-16"),
        "large": b" " * (70 * 2**20), "values": b"[" + b"[]," * 10**7 + b"1]", "lines": b"\n" * 10**7, "nan": b"NaN",
        "twice": b'{"format": "treering model", "format": 1, "checksum": ""}', "\xe4": b"\xe4\xff",
    }  # fmt: skip
    name = mutant.draw.choice(list(texts))
    file = mutant.any_file("manifest.json", "previous/*.json", "history-*")
    if file.name.startswith("history"):
        mutant.put(file.name, texts[name])
    else:
        file.write_bytes(texts[name])
    return f"absurd {name} in {file.name}"


def change_history(mutant: Mutant) -> str:
    """Change values of a history."""
    file, draw = mutant.any_file("history-*"), mutant.draw
    if not file.name.startswith("history"):
        return "nothing"
    records = [json.loads(line) for line in file.read_bytes().splitlines() if line.startswith(b"{")] or [{}]
    done = _mutate(records, draw)
    with contextlib.suppress(RecursionError):
        text = "".join(json.dumps(record) + "\n" for record in records)
        mutant.put(file.name, text.encode("utf-8", "surrogatepass"))
    return f"history: {done}"


def _tensors(content: bytes) -> tuple[dict[str, Json], bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _with_header(header: Json, data: bytes) -> bytes:
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "little") + text + data


def change_header(mutant: Mutant) -> str:
    """Change the header of a tensor file."""
    file, draw = mutant.any_file("weights-*", ".learning"), mutant.draw
    content = file.read_bytes()
    kind = draw.choice(["values", "values", "length", "random", "huge", "resize"])
    if kind == "length":
        content = draw.choice([0, 1, 2**63, 2**64 - 1, len(content), 100 * 2**20]).to_bytes(8, "little") + content[8:]
    elif kind == "random":
        content = draw.randbytes(draw.choice([0, 7, 8, 9, 1000]))
    else:
        try:
            header, data = _tensors(content)
        except ValueError:
            return "nothing"
        name = draw.choice(sorted(header))
        if kind == "huge":
            header[name] = {"dtype": "F32", "shape": [3, 4000, 4000], "data_offsets": [0, 192_000_000]}
        elif kind == "resize" and "shape" in header[name]:
            header[name]["shape"] = header[name]["shape"][::-1]
        else:
            _mutate(header, draw)
        with contextlib.suppress(RecursionError):
            content = _with_header(header, data)
    _replace(mutant, file, content)
    return f"header {kind} of {file.name}"


def change_numbers(mutant: Mutant) -> str:
    """Change numbers of tensors, in place."""
    file, draw = mutant.any_file("weights-*", "weights-*", ".learning"), mutant.draw
    content = bytearray(file.read_bytes())
    try:
        header, data = _tensors(bytes(content))
        names = [name for name in sorted(header) if name != "__metadata__"]
        name = draw.choice([*names, *[name for name in names if "statistics" in name] * 20])
        begin, end = header[name]["data_offsets"]
        size = {"F64": 8, "I64": 8, "F32": 4, "U8": 1}[header[name]["dtype"]]
        start, value = len(content) - len(data), draw.choice([float("nan"), float("inf"), 1e38, -1e38, -1.0, 0.0, 0.5])
        one = struct.pack({8: "<d", 4: "<f"}.get(size, "<b"), value if size > 1 else -1)
        for at in range(begin, end, size):
            if draw.random() < 0.5:
                content[start + at : start + at + size] = one
    except (ValueError, KeyError, IndexError, TypeError):
        return "nothing"
    _replace(mutant, file, bytes(content))
    return f"numbers {name} = {value} in {file.name}"


def _replace(mutant: Mutant, file: Path, content: bytes) -> None:
    if file.name.startswith("weights"):
        mutant.put(file.name, content)
    elif file.name == ".learning":
        file.write_bytes(content)


def change_image(mutant: Mutant) -> str:
    """Put another picture in the place of an exemplar or a held-out image."""
    file, draw = mutant.any_file("memory/*/*.png", "held-out/*/*.png"), mutant.draw
    if file.suffix != ".png":
        return "nothing"
    kind = draw.choice(["size", "L", "P", "RGBA", "I;16", "GIF", "EPS", "JPEG", "huge", "cut", "text", "animation"])
    buffer = io.BytesIO()
    pixels = Image.fromarray(np.zeros((20, 20, 3), np.uint8))
    if kind == "size":
        pixels.resize((21, 20)).save(buffer, "PNG")
    elif kind in ("L", "P", "RGBA", "I;16"):
        pixels.convert("L").convert(kind).save(buffer, "PNG")
    elif kind in ("GIF", "JPEG"):
        pixels.save(buffer, kind)
    elif kind == "animation":
        pixels.save(buffer, "PNG", save_all=True, append_images=[pixels] * 3)
    else:
        content = file.read_bytes()
        huge = content[:16] + struct.pack(">II", 60_000, 60_000) + content[24:]
        eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\nshowpage\n"
        texts = {"huge": huge, "EPS": eps, "cut": content[: len(content) // 2], "text": b"no image"}
        buffer.write(texts[kind])
    mutant.put(file.relative_to(mutant.path).as_posix(), buffer.getvalue())
    return f"image {kind}"


def change_png(mutant: Mutant) -> str:
    """Put a PNG file that few programs would write in the place of an image."""
    file = mutant.any_file("memory/*/*.png", "held-out/*/*.png")
    mutant.put(file.relative_to(mutant.path).as_posix(), odd_png(mutant.draw, (3, 20, 20)))
    return f"png in {file.parent.relative_to(mutant.path)}"


def odd_png(draw: random.Random, shape: Sequence[int]) -> bytes:
    """Return the PNG file of an image C x H x W, written in an odd way; about half of them can be decoded."""
    channels, height, width = shape
    rows = b"".join(bytes([draw.randrange(5)]) + draw.randbytes(width * channels) for _ in range(height))
    if draw.random() < 0.1:
        rows = draw.choice([rows[:-1], rows + b"\0", rows[: width * channels], rows * 1000, b"\x05" + rows[1:]])
    body = _odd_stream(draw, rows)
    if draw.random() < 0.1:
        body = draw.choice([body[:-1], body[:-4], body + b"\0", body + body, body[:-1] + b"\0"])
    ends = [*range(3), *range(len(body) - 9, len(body) + 1), draw.randrange(len(body))]
    cuts = sorted(min(max(draw.choice(ends), 0), len(body)) for _ in range(draw.choice([0, 1, 2, 4, 9])))
    parts = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    head = [width, height, 8, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0]
    if draw.random() < 0.1:
        head[draw.randrange(7)] = draw.choice([0, 1, 3, 16, 255])
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", *head)), *((b"IDAT", part) for part in parts), (b"IEND", b"")]
    if draw.random() < 0.2:
        kind = draw.choice(
            [b"tEXt", b"PLTE", b"tRNS", b"acTL", b"fdAT", b"iCCP", b"IEND", b"IHDR", b"IDAT", b"\0\0\0\0"]
        )
        chunks.insert(draw.randrange(len(chunks) + 1), (kind, draw.randbytes(draw.choice([0, 1, 13, 30]))))
    content = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, part) for kind, part in chunks)
    return content + draw.choice([*[b""] * 19, b"\0", b"IEND", draw.randbytes(12), bytes(5000)])


def _chunk(kind: bytes, part: bytes) -> bytes:
    return struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))


def _odd_stream(draw: random.Random, rows: bytes) -> bytes:
    """Return these bytes as zlib's format holds them: in empty blocks, with another window, or with a dictionary."""
    if draw.random() < 0.3:
        blocks = [bytes([0]) + struct.pack("<HH", 0, 65535)] * draw.choice([0, 1, 3000])
        while rows:
            size = draw.choice([0, 1, 7, 1000, 65535])
            part, rows = rows[:size], rows[size:]
            blocks.append(b"\0" + struct.pack("<HH", len(part), 65535 - len(part)) + part)
        whole = b"".join(block[5:] for block in blocks)
        return b"\x78\x01" + b"".join(blocks) + b"\1\0\0\xff\xff" + struct.pack(">I", zlib.adler32(whole))
    window = draw.choice([9, 10, 15, 15, 15, -15, 31])
    dictionary = [rows[:50]] if window == 15 and draw.random() < 0.2 else []
    compressor = zlib.compressobj(draw.randrange(10), zlib.DEFLATED, window, 8, draw.randrange(5), *dictionary)
    half, flush = len(rows) // 2, draw.choice([zlib.Z_FULL_FLUSH, zlib.Z_SYNC_FLUSH])
    parts = [compressor.compress(rows[:half]), compressor.flush(flush), compressor.compress(rows[half:])]
    stream = bytearray(b"".join([*parts, compressor.flush()]))
    if draw.random() < 0.2:  # another window than it was written with
        stream[0] = 8 | draw.randrange(16) << 4
        stream[1] = 31 - stream[0] * 256 % 31
    return bytes(stream)


def swap(mutant: Mutant) -> str:
    """Swap two files."""
    one, other = mutant.any_file(), mutant.any_file()
    if one != other:  # by their names, since one may have gigabytes
        aside = one.with_name("aside")
        one.rename(aside)
        other.rename(one)
        aside.rename(other)
    return f"swap {one.name} and {other.name}"


def put_in_place(mutant: Mutant) -> str:
    """Put a link, a pipe, a socket or a folder in the place of a file or folder, or where none is expected."""
    draw, path = mutant.draw, mutant.path
    names = [file.relative_to(path).as_posix() for file in mutant.files()]
    folders = [item.relative_to(path).as_posix() for item in sorted(path.glob("**/*")) if item.is_dir()]
    new = [".writer", ".lock", ".learning", "previous", "previous/9999.json", f".tmp-{'a' * 32}", "memory/9999-x"]
    new += ["previous/0001x.json", "memory/0000-cat/9999-0123456789ab.png", "previous/" + "9" * 30 + ".json"]
    name = draw.choice([draw.choice(names), draw.choice(folders or names), draw.choice(new)])
    place = path / name
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    outside = mutant.outside
    kinds = ["link to a file", "link to a folder", "link to a device", "link to itself", "link to nothing"]
    kind = draw.choice([*kinds, "hard link", "pipe", "socket", "folder", "missing", "link to passwd"])
    targets = dict(
        zip(kinds, [outside / "precious.txt", outside, Path("/dev/zero"), place, outside / "none"], strict=True)
    )
    if kind in targets or kind == "link to passwd":
        place.symlink_to(targets.get(kind, Path("/etc/passwd")))
    elif kind == "hard link":
        os.link(outside / "precious.txt", place)
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
            one.bind(str(place))
    elif kind == "folder":
        place.mkdir()
    return f"{kind} at {name}"


def oversize(mutant: Mutant) -> str:
    """Make a file gigabytes long, most of it holes."""
    file, size = mutant.any_file(), mutant.draw.choice([2**27, 3 * 2**30, 2**42])
    with file.open("r+b") as stream:
        stream.truncate(size)
    return f"{size} bytes of {file.relative_to(mutant.path)}"


def add_files(mutant: Mutant) -> str:
    """Add files of odd names."""
    name = mutant.draw.choice(
        ["\x1b[31m", "a\nb", "\u202etxt", "notes.txt", ".tmp-x", "weights-0.safetensors", "x" * 200]
    )
    place = mutant.path / mutant.draw.choice(["", "memory", "previous"])
    place.mkdir(exist_ok=True)
    (place / name).write_bytes(b"x")
    return f"a file {name!r}"


CHANGES: dict[Change, int] = {
    change_bytes: 3, change_manifest: 5, change_recipe: 4, write_absurd_json: 1, change_history: 3, change_header: 3,
    change_numbers: 3, change_image: 3, change_png: 3, swap: 1, put_in_place: 5, oversize: 1, add_files: 1,
}  # fmt: skip


# Models


def make_models(folder: Path) -> dict[str, Path]:
    """Make the small models that are changed, and photos to learn and to predict."""
    from treering import Learner, Recipe
    from treering.photos import learn as photos

    random_pixels = np.random.RandomState(0)

    def write(names: str, count: int, to: str) -> Path:
        for name in names.split():
            (folder / to / name).mkdir(parents=True, exist_ok=True)
            colour = random_pixels.randint(40, 216, 3)
            for number in range(count):
                pixels = (colour + random_pixels.randint(-30, 31, (20, 20, 3))).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / to / name / f"{number}.png")
        return folder / to

    first, second, third = write("cat dog", 6, "first"), write("owl", 5, "second"), write("cat eel", 3, "third")
    few = ["training.epochs=2", "training.drop_at=[]", "balanced.epochs=1", "balanced.drop_at=[]"]
    tiny = ["augmentation.crop_size=16", "run.image_size=20", "optimizer.batch_size=8"]
    for name, changes in {"eeil": [*few, *tiny], "closed-form": ["method=closed-form", *tiny]}.items():
        photos.learn(folder / name, first, backbone="small", memory=6, changes=changes, device="cpu")
        photos.learn(folder / name, second, device="cpu")
    shutil.copytree(folder / "eeil", folder / "resized")
    photos.SAVE_EVERY = 0.0
    with contextlib.suppress(KeyboardInterrupt):
        photos.learn(folder / "resized", third, memory=4, device="cpu", progress=_interrupt_training)
    recipe = Recipe(method="icarl", backbone="small", outputs=9).changed(
        [*few, "memory.size=9", "augmentation.kind=none"]
    )
    learner = Learner(recipe=recipe, device="cpu")
    images = np.stack([np.asarray(Image.open(file)) for file in sorted(first.rglob("*.png"))])
    learner.partial_fit(images, ["cat"] * 6 + ["dog"] * 6).save(folder / "icarl")
    return {name: folder / name for name in ("eeil", "closed-form", "resized", "icarl")}


def _interrupt_training(what: str, done: int, total: int, calls: list[int] = []) -> None:  # noqa: B006  # counts calls
    if what == "training":
        calls.append(done)
        if len(calls) == 2:
            raise KeyboardInterrupt


def make_outside(folder: Path) -> Path:
    """Make a folder of precious files, some of which have names that treering might remove in its own folders."""
    folder.mkdir()
    names = [
        "precious.txt",
        f".tmp-{'b' * 32}",
        "0000-0123456789ab.png",
        "weights-0123456789ab.safetensors",
        "0001.json",
    ]
    for name in names:
        (folder / name).write_text(f"precious: {name}")
    (folder / "0000-cat").mkdir()
    (folder / "0000-cat" / "0000-0123456789ab.png").write_text("precious")
    return folder


def state_of(folder: Path) -> dict[str, Any]:
    """Return all that may not change in the folder outside."""
    return {
        str(file.relative_to(folder)): (file.stat().st_mode, file.read_bytes() if file.is_file() else "")
        for file in sorted(folder.rglob("*"))
    }
