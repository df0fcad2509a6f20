"""Jobs in a folder of their own."""

from __future__ import annotations

import pytest

from noting_networks import in_folder
from resemblance.sweep.job_file import read_jobs
from resemblance.sweep.run_sweep import ResultFolder, SweepLocation


@pytest.fixture
def made(tmp_path):
    """Makes a file of jobs: what it asks for, and where."""

    def make(jobs):
        asked = read_jobs(in_folder(tmp_path, jobs))
        place = SweepLocation(asked.base, ResultFolder(asked.out))
        place.results.make()
        return asked, place

    return make
