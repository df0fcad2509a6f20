"""A sweep worker: records pairs one after the other in one process, with an outcome for each.

A pair that raises an exception ends in a failed `Outcome` and does not end the worker. The data of
the last pair stay open for the next, so data are read once for all networks recorded on them. One
data set is held at a time and dropped before the next is opened, so that memory never holds two.
Networks share tokenised text if their tokenizers produce the same tokens.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from .._data.hugging_face import (
    load_text_config,
    load_tokenizer,
    max_sequence_length,
    own_tokenizer,
    tokenizer_info,
)
from .._data.text import tokenized_text_of
from ..errors import DataError, ResemblanceWarning
from ..recording.config import RecordConfig
from ..recording.record import load_recording_data, record_named
from .job_file import Pair
from .progress import Outcome, failed_outcome
from .run_sweep import SweepLocation


class SharedData:
    """What the last pair was recorded on, for those that come after it."""

    def __init__(self) -> None:
        self._opens: Any = None
        self._tokens: Any = None
        self._data: Any = None

    def of(self, pair: Pair) -> Any:
        """The data of a pair, as `record` takes them."""
        tokens = None
        if self._opens == pair.opens and self._tokens is not None:
            tokens = _tokenizer_key(pair)
        if self._opens != pair.opens or self._tokens != tokens:
            self._opens = self._tokens = self._data = None
            data = load_recording_data(pair.wanted)
            if hasattr(data, "__next__"):  # an iterator's data are gone once they have been read
                return data
            self._opens, self._data = pair.opens, data
            self._tokens = None if tokenized_text_of(data) is None else _tokenizer_key(pair)
        return self._data


def _tokenizer_key(pair: Pair) -> tuple[Any, ...] | None:
    """What the tokens of a text depend on, but for the text; None if no text goes to the model."""
    name, given = own_tokenizer(pair.wanted.model), pair.wanted.text.tokenizer
    if name is None and given is None:
        return None
    tokenizer = load_tokenizer(given or str(name))
    config = None if name is None else load_text_config(name)
    return (
        tokenizer_info(tokenizer), max_sequence_length(config, tokenizer),
        getattr(config, "vocab_size", None),
        tokenizer.pad_token_id, tokenizer.eos_token_id, tuple(tokenizer("a")["input_ids"]),
    )  # fmt: skip


class Worker:
    """A process that records pairs; it keeps the data of the last one open for the next."""

    def __init__(
        self, place: SweepLocation, device: str = "", seconds: float | None = None
    ) -> None:
        self.place, self.device, self.seconds = place, device, seconds
        self.data = SharedData()

    def done(self, pair: Pair, *, wait: bool = False) -> Outcome:
        """Record a pair, unless it is there.

        Args:
            pair: what to record.
            wait: if a different process is recording it, wait until that process is done.
        """
        began, messages = time.monotonic(), list[str]()
        try:
            with _collect_warnings(messages):
                outcome = self._recorded(pair, wait)
        except Exception as error:
            outcome = failed_outcome(pair.name, error)
        finally:
            gc.collect()  # a network's hooks and graphs may refer to each other
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()  # for other processes on the same device
        return replace(outcome, seconds=time.monotonic() - began, warnings=tuple(messages))

    def _recorded(self, pair: Pair, wait: bool) -> Outcome:
        results = self.place.results
        try:
            os.chdir(self.place.base)
        except OSError as error:
            raise DataError(
                f"the folder {self.place.base} does not exist on this machine ({error.strerror}); "
                "a sweep over several machines needs a shared file system"
            ) from error
        results.make()
        with results.claimed(pair, wait=wait) as own:
            if not own:
                return Outcome(pair.name, "busy", error=results.holder(pair.name))
            with _time_limit(self.seconds):
                if results.holds(pair):
                    return Outcome(pair.name, "there")
                checkpoint = results.checkpoint(pair.name) if pair.checkpoint else None
                config = RecordConfig(**pair.options, checkpoint=checkpoint, progress=False)
                wanted = replace(pair.wanted, device=self.device)
                results.keep(pair, record_named(wanted, self.data.of(pair), config))
                return Outcome(pair.name, "recorded")


@contextlib.contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """Let the system end this process (SIGALRM) if the block takes longer than that.

    A signal handler of Python's own, or a thread, would wait for the pass that hangs.
    """
    if seconds is None:
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def _collect_warnings(messages: list[str]) -> Iterator[None]:
    """This package's warnings into a list, each once; others as they are shown."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def showwarning(message: Any, category: Any, *rest: Any, **more: Any) -> None:
            if not issubclass(category, ResemblanceWarning):
                show(message, category, *rest, **more)
            elif str(message) not in messages:
                messages.append(str(message))

        warnings.showwarning = showwarning
        warnings.simplefilter("always", ResemblanceWarning)
        yield
