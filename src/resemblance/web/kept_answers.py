"""Answers that are kept for whoever asks the same again, as long as there is room for them.

Of several who ask the same thing at once, the first makes the answer and the others wait for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

ROOM = 64 * 2**20  # bytes
OWN = 2048  # bytes that a question takes, whatever its answer


class KeptAnswers:
    """Answers by what was asked; those not asked for the longest give way.

    >>> kept = KeptAnswers()
    >>> kept.of("a", lambda: b"1"), kept.of("a", lambda: b"2"), len(kept)
    (b'1', b'1', 1)
    """

    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self._turn = threading.Lock()
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._taken = 0
        self._making: dict[Hashable, Future[bytes]] = {}

    def of(self, asked: Hashable, make: Callable[[], bytes]) -> bytes:
        """The answer, made if it is not there. An error is for those who wait, and not kept."""
        with self._turn:
            if asked in self._kept:
                self._kept.move_to_end(asked)
                return self._kept[asked]
            waiting = self._making.get(asked)
            if waiting is None:
                mine = self._making[asked] = Future()
        if waiting is not None:
            return waiting.result()
        try:
            answer = make()
        except BaseException as error:
            self._ended(asked)
            mine.set_exception(error)
            raise
        self._ended(asked, answer)
        mine.set_result(answer)
        return answer

    def _ended(self, asked: Hashable, answer: bytes | None = None) -> None:
        with self._turn:
            del self._making[asked]
            if answer is None or OWN + len(answer) > self.room // 4:
                return
            self._kept[asked] = answer
            self._taken += OWN + len(answer)
            while self._taken > self.room:
                self._taken -= OWN + len(self._kept.popitem(last=False)[1])

    def __len__(self) -> int:
        return len(self._kept)
