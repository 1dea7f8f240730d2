"""The program that computes an exported file's answers, in a process of its own.

What a graph costs is known only once it is computed, and onnxruntime cannot be stopped within an operation. So this
process ends itself when a time has passed, and the system gives it no more memory than it may have. The process that
asks (`onnx_process.py`) starts it by its path, so that it loads NumPy, onnxruntime and nothing of treering.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import struct
import sys
import time
from typing import Any, BinaryIO

import numpy as np

SIZE = struct.Struct("<Q")
"""How a number is written between the two processes."""
STACK = 2**24
"""The bytes that each thread may take besides."""


def main() -> None:
    """Read the settings from the command line and the file from the input, then answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks is interrupted too, and ends this process
    settings = json.loads(sys.argv[1])
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # what onnxruntime may print is no answer
    with os.fdopen(nowhere, "wb") as silence:
        try:
            _answer(settings, requests, replies, silence)
        except Exception as error:  # onnxruntime has a class for each kind of error, and none for all
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            _reply(replies, {"error": said[:1000]})


def _answer(settings: dict[str, Any], requests: BinaryIO, replies: BinaryIO, silence: BinaryIO) -> None:
    """Tell of the graph's inputs and outputs, then compute the outputs for each batch of images."""
    import onnxruntime

    _bound_memory(settings["bytes"])
    _bound_tensors(onnxruntime, settings["bytes"])
    content = requests.read(SIZE.unpack(requests.read(SIZE.size))[0])
    start, seconds = time.monotonic(), settings["seconds"]
    faulthandler.dump_traceback_later(seconds, exit=True, file=silence)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what is wrong is said in one line
    options.add_session_config_entry("session.use_env_allocators", "1")  # the one that is bounded
    options.add_session_config_entry("session.load_model_format", "ONNX")  # the format that was checked
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other programs use the cores meanwhile
    if settings["threads"]:
        options.intra_op_num_threads = settings["threads"]
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    del content
    faulthandler.cancel_dump_traceback_later()
    found = [(one.name, one.type, one.shape[1:]) for one in (*session.get_inputs(), *session.get_outputs())]
    _reply(replies, {"found": found})
    left = seconds - (time.monotonic() - start)  # for the first answer; each later one has all of the time
    shape = settings["shape"]
    while size := requests.read(SIZE.size):
        images = np.frombuffer(requests.read(SIZE.unpack(size)[0]), np.float32).reshape(-1, *shape)
        faulthandler.dump_traceback_later(max(left, 0.01), exit=True, file=silence)
        answers = session.run(None, {"images": images})
        faulthandler.cancel_dump_traceback_later()
        left = seconds
        _reply(replies, {"shapes": [answer.shape for answer in answers]}, *answers)


def _bound_tensors(onnxruntime: Any, most: int) -> None:
    """Have onnxruntime refuse more memory than this for tensors."""
    kinds = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    place = onnxruntime.OrtMemoryInfo("Cpu", *kinds)
    onnxruntime.create_and_register_allocator(place, onnxruntime.OrtArenaCfg({"max_mem": most}))


def _bound_memory(most: int) -> None:
    """Have the system refuse more memory than this for everything; only Linux knows such a bound."""
    try:
        import resource
    except ImportError:
        return
    most += STACK * (os.cpu_count() or 1)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _reply(replies: BinaryIO, told: dict[str, Any], *answers: np.ndarray) -> None:
    text = json.dumps(told).encode()
    replies.write(SIZE.pack(len(text)) + text)
    for answer in answers:
        replies.write(answer.tobytes())
    replies.flush()


if __name__ == "__main__":
    main()
