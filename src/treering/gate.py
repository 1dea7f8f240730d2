"""Who may use what a learner has learnt, and who may change it, when several threads have it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from treering.errors import TreeringError


class Gate:
    """Many may use a thing at the same time; who changes it waits for them and is alone."""

    def __init__(self) -> None:
        self._users = 0
        self._changing = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def using(self, action: str) -> Iterator[None]:
        """Raise if it is being changed, by another thread or by the call that tells its progress just now."""
        counted = False
        try:
            with self._changed:
                self._require_rest(action)
                counted = True
                self._users += 1
            yield
        finally:
            if counted:
                with self._changed:
                    self._users -= 1
                    self._changed.notify_all()

    @contextlib.contextmanager
    def changing(self, action: str) -> Iterator[None]:
        """Wait until nobody uses it."""
        mine = False
        try:
            with self._changed:
                self._require_rest(action)
                mine = self._changing = True
                self._changed.wait_for(lambda: not self._users)
            yield
        finally:
            if mine:
                self._changing = False

    def _require_rest(self, action: str) -> None:
        if self._changing:
            raise TreeringError(f"a step is being learnt: {action} when partial_fit has returned")
