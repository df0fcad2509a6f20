"""A sweep does what is missing, keeps errors, and never replaces a recording."""

from __future__ import annotations

from resemblance.sweep.progress import Attempts, Outcome, PairStarted
from resemblance.sweep.run_sweep import run_sweep, sweep_status
from resemblance.sweep.worker import Worker


def in_this_process(pairs, place):
    """An engine that is the test's own process."""
    for pair in pairs:
        yield PairStarted(pair.name, "here")
        yield Attempts(retries=0).judged(Worker(place).done(pair))


def states(found):
    return {status.pair.name: status.state for status in found}


def test_a_second_start_does_only_what_is_missing(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, _ = made("models: [nets.py:one, nets.py:bad]\ndata: {x: nets.py:x}")
    assert states(sweep_status(asked)) == {"nets-one--x": "missing", "nets-bad--x": "missing"}
    told = []
    one, bad = run_sweep(asked, sweep_status(asked), in_this_process, told.append)
    assert (one.state, bad.state, len(told)) == ("recorded", "failed", 4)
    assert one.seconds > 0
    assert bad.error_file == tmp_path / "results/nets-bad--x.error.txt"
    text = bad.error_file.read_text()
    assert text.startswith("ValueError: no luck with this one\n\nTraceback")

    one, bad = sweep_status(asked)
    assert (one.state, bad.state) == ("there", "missing")
    assert (bad.error, bad.error_file.exists()) == ("ValueError: no luck with this one", True)
    nets = tmp_path / "nets.py"
    nets.write_text(
        nets.read_text().replace('raise ValueError("no', 'return network("b", 1)  # ("')
    )
    told.clear()
    one, bad = run_sweep(asked, sweep_status(asked), in_this_process, told.append)
    assert (one.state, bad.state) == ("there", "recorded")
    assert [event.name for event in told] == ["nets-bad--x"] * 2
    assert not (tmp_path / "results/nets-bad--x.error.txt").exists()


def test_what_is_there_is_never_replaced(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, place = made("models: nets.py:one\ndata: {x: nets.py:x}")
    path = place.results.result("nets-one--x")
    path.write_text("something else")
    place.results.keep_error("nets-one--x", "old")
    (found,) = run_sweep(asked, sweep_status(asked), in_this_process, lambda event: None)
    assert found.state == "failed"
    assert "delete it" in found.error_file.read_text()
    assert path.read_text() == "something else"


def test_an_engine_that_is_told_of_what_is_not_over(made):
    asked, _ = made("models: nets.py:one\ndata: {x: nets.py:x}")

    def unsteady(pairs, place):
        for state in ("busy", "again", "there"):
            yield Outcome(pairs[0].name, state, error="not yet")

    (found,) = run_sweep(asked, sweep_status(asked), unsteady, lambda event: None)
    assert (found.state, found.error) == ("there", None)
