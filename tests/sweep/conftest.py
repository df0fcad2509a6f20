"""Jobs in a folder of their own."""

from __future__ import annotations

import pytest

from noting_networks import in_folder
from resemblance.sweep.job_files import read
from resemblance.sweep.result_folder import ResultFolder
from resemblance.sweep.worker import Place


@pytest.fixture
def made(tmp_path):
    """Makes a file of jobs: what it asks for, and where."""

    def make(jobs):
        asked = read(in_folder(tmp_path, jobs))
        place = Place(asked.base, ResultFolder(asked.out))
        place.results.make()
        return asked, place

    return make
