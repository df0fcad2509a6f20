"""Names and other words that a caller gives."""

from __future__ import annotations

import pytest

from resemblance._given_words import check_words
from resemblance.errors import DataError


def test_text_of_any_language_is_a_word():
    check_words(name="net", data_id="données", title="網 \x1b[31m 🙂")


@pytest.mark.parametrize("value", ["", None, 3, b"net", ["net"]], ids=repr)
def test_what_is_no_text_is_refused_by_name(value):
    with pytest.raises(DataError, match="title must be a text that is not empty; found"):
        check_words(name="net", title=value)
