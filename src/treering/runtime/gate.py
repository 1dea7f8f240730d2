"""Who may use what a learner has learnt, and who may change it, when several threads have it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from treering.errors import TreeringError


class Gate:
    """Many may use a thing at the same time; who changes it waits for them and is alone."""

    def __init__(self) -> None:
        self._users: list[int] = []
        """The thread of each use. Ctrl-C may leave one behind, which its own thread must not wait for."""
        self._changing = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def using(self, action: str) -> Iterator[None]:
        """Raise if it is being changed, by another thread or by the call that tells its progress just now."""
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
        """Wait until no other thread uses it."""
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
