"""Notes: what a reader should know before using a result, as a code, values and a sentence.

`SENTENCES` has the sentence of every code, so that each is written once. Code that must recognise a
note asks for its `code` and never reads the sentence. A warning of a note has its code as well
(`ResemblanceWarning.code`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .._utils.formatting import count_noun, join_names

if TYPE_CHECKING:
    from typing_extensions import Self

MIN_SAMPLES = 50  # samples, or sequences, below which results come with a warning
_UNRELIABLE = (
    "The effective sample size (n_eff) is {n_eff:.0f} of {samples:,} {unit}: a few of them "
    "dominate. Record more {unit}"
)
_SMALLER_BETA = ", or gradients with a smaller `beta`"


def _few_samples(samples: int, unit: str) -> str:
    return (
        f"only {count_noun(samples, unit, f'{unit}s')}: below {MIN_SAMPLES}, standard errors, "
        f"chance levels and bounds are unreliable, so record more {unit}s"
    )


def _unreliable_layers(kernel: str, layers: list[str], compared: int) -> str:
    return (
        f"some standard errors may be too small, of {kernel} at {len(layers)} of {compared} layers "
        f"({join_names(map(repr, layers), 3)}): a few samples dominate there (n_eff). Record more "
        f"samples{_SMALLER_BETA if kernel == 'gradients' else ''}"
    )


def _unreliable_networks(models: list[str], **carried: Any) -> str:
    return (
        f"some standard errors may be too small, of scores of {join_names(map(repr, models), 3)}. "
        f"{_UNRELIABLE.format(**carried)}{_SMALLER_BETA}"
    )


SENTENCES: dict[str, str | Callable[..., str]] = {
    # samples
    "few-samples": _few_samples,
    "skipped-samples": (
        "{samples:,} samples with NaN or Inf were skipped by both recordings and are not judged"
    ),
    "repeated-samples": (
        "only {distinct:,} of {samples:,} {unit} have different outputs; bounds assume independent "
        "{unit}, and repeated ones make them too narrow"
    ),
    "unpaired": (
        "the two recordings used different samples, which are paired by position only, so these "
        "scores have little meaning. Record both networks on the same samples (no labels needed)"
    ),
    "unpaired-names": (
        "the two recordings have different names for their samples (`data_id` {a!r} and {b!r}) and "
        "count as different, although the samples are identical. Use the same `data_id` for both, "
        "or none"
    ),
    # scores and standard errors
    "constant-layer": (
        "layer {layer!r} of {model!r} is constant on these data, or nearly so: its scores are "
        "undefined"
    ),
    "unreliable-errors": (
        "{count} of {scores} standard errors may be too small. " + _UNRELIABLE + _SMALLER_BETA
    ),
    "unreliable-layers": _unreliable_layers,
    "unreliable-networks": _unreliable_networks,
    "unreliable-adaptation": (
        "standard errors may be too small at {count} of {layers} layers. The effective sample size "
        "(n_eff) is {n_eff:.0f} of {samples:,} at {layer!r}: a few samples dominate. Record more "
        "samples, or use a smaller `beta`"
    ),
    "small-blocks": (
        "standard errors of centred scores from blocks of {block} samples are too small; record "
        "with at least {enough} samples in a block"
    ),
    "no-errors": "no standard error: {index!r} {reason}",
    "not-symmetric": "{index} is not symmetric: swap the networks for the other direction",
    # estimators
    "by-keys": (
        "estimated from buckets, which pair samples by their keys: both recordings used the same "
        "samples in a different order, so their blocks contain different samples"
    ),
    "from-buckets": (
        "estimated from buckets, which contain all samples: a few samples dominate these kernels, "
        "and most of them are outside the blocks"
    ),
    "tokens-in-buckets": (
        "standard errors are too small: buckets treat the tokens of a sequence as independent"
    ),
    "product-of-buckets": (
        "the product of bucket kernels is not a sketch of the product kernel, because it mixes the "
        "samples of a bucket; compare such scores only with each other"
    ),
    "transport-floor": "transport inverts K_f on eigenvalues above {floor:g} of their mean",
    "mean-of-blocks": "{index} is the mean over blocks of samples",
    # layers and kernels that are not compared
    "no-gradients": "gradients are not compared: {reason}",
    "no-predictions": "predictions are not compared: {reason}",
    "other-gradients": "gradients are not compared: {difference}",
    "matched-by-similarity": "layers were matched by similarity, which raises scores",
    "zero-layers": "layers of {model} with zero output have no SQNR: {layers}",
    "ignored-layers": "layers of {model} without a counterpart are ignored: {layers}",
    "extra-layers": "layers of {model} without a counterpart are not judged: {layers}",
    # blocks that are exchanged
    "weights-outside": "weights outside of all blocks differ too: {weights}",
    "shared-weights": (
        "some blocks are tied to weights outside of them ({weights}) and were exchanged alone; a "
        "copy that keeps one in full precision must keep both, or untie them"
    ),
    "not-alone": (
        "{blocks}: exchanged alone, such a block changes the outputs more than {times:g} times as "
        "much as the whole copy. Blocks that were changed together (norms folded into weights, a "
        "rotated basis) cannot be ranked alone: rely on the verified set, not on the ranking"
    ),
    # recommendations
    "query": "Ranked on {samples:,} {what}; each candidate was run once.",
    "no-first-look": (
        "No candidate is linked to a recording of its training data, so candidates were run in the "
        "order given."
    ),
    "no-reference": (
        "{linked} of {candidates} candidates are linked to a recording of their training data. "
        "Pass `reference` to rank these before running any."
    ),
    "first-look": (
        "{ordered} of {candidates} candidates were first ranked by their training data{rest}."
    ),
}


ALARMS = {  # codes of notes that are also warned of
    "constant-layer",
    "few-samples",
    "small-blocks",
    "unpaired",
    "unpaired-names",
    "unreliable-errors",
}


class Note(str):
    """What a reader should know before using a result: a sentence with a code and values.

    It is a `str`, so it can be printed and joined like one. Compare `code` rather than the words,
    which may change between releases.

    Attributes:
        code: what the note is about, such as `few-samples` or `constant-layer`; `text` for a note
            of a file that holds sentences alone.
        values: the numbers and names in the sentence.

    Example:
        >>> import torch, resemblance as rs
        >>> x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
        >>> a, b = rs.record_arrays(x, data_id="x"), rs.record_arrays(x * 0 + 1, data_id="x")
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     note = rs.compare(a, b, kernel="features").notes[0]
        >>> note.code, note.values["layer"]
        ('constant-layer', 'features')
    """

    code: str
    values: Mapping[str, Any]

    def __new__(
        cls, sentence: str, code: str = "text", values: Mapping[str, Any] | None = None
    ) -> Self:
        note = super().__new__(cls, sentence)
        note.code, note.values = code, dict(values or {})
        return note

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.code, self.values

    def of_kernel(self, kernel: str) -> Note:
        """The same note of one kernel among several.

        Args:
            kernel: name of the kernel, with which the sentence begins.

        Returns:
            A new note, with the kernel among its values.
        """
        return Note(f"{kernel}: {self}", self.code, {**self.values, "kernel": kernel})

    def to_dict(self) -> dict[str, Any]:
        """The code, the values and the sentence (`text`).

        Returns:
            A dict, as JSON can hold it.
        """
        return {"code": self.code, "values": self.values, "text": str(self)}

    @classmethod
    def from_dict(cls, stored: str | Mapping[str, Any]) -> Self:
        """From what `to_dict` returned, or from a sentence alone, as in files of 0.1.0.

        Args:
            stored: the dict, or the sentence.

        Returns:
            The note.
        """
        if isinstance(stored, str):
            return cls(stored)
        return cls(stored["text"], stored["code"], stored["values"])


def make_note(code: str, **values: Any) -> Note:
    """The note of a code in `SENTENCES`."""
    sentence = SENTENCES[code]
    if callable(sentence):
        return Note(sentence(**values), code, values)
    words = {k: ", ".join(x) if isinstance(x, list) else x for k, x in values.items()}
    return Note(sentence.format(**words), code, values)
