"""Access to what a learner has learnt when several threads share it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from treering.errors import TreeringError


class Gate:
    """Lets many threads use a thing at the same time; a thread that changes it waits for them and is alone."""

    def __init__(self) -> None:
        self._users: list[int] = []
        """The thread of each use under way. Ctrl-C may leave one behind, for which its own thread must not wait."""
        self._changing = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def using(self, action: str) -> Iterator[None]:
        """Use the thing in this context; raise if it is being changed, even by a call that is telling its progress."""
        thread, counted = threading.get_ident(), False
        try:
            with self._changed:
                self._require_rest(action)
                counted = True
                self._users.append(thread)
            yield
        finally:
            if counted:
                with self._changed:
                    self._users.remove(thread)
                    self._changed.notify_all()

    @contextlib.contextmanager
    def changing(self, action: str) -> Iterator[None]:
        """Change the thing in this context, once no other thread uses it; raise if it is being changed already."""
        thread, mine = threading.get_ident(), False
        try:
            with self._changed:
                self._require_rest(action)
                mine = self._changing = True
                self._changed.wait_for(lambda: all(user == thread for user in self._users))
            yield
        finally:
            if mine:
                self._changing = False

    def _require_rest(self, action: str) -> None:
        if self._changing:
            raise TreeringError(f"a step is being learnt: {action} when partial_fit has returned")
