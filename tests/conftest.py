"""The embedded pair, loaded once: its conversion is cached on disk, the model for the session. Measured costs stay out
of the user's cache.
"""

from __future__ import annotations

import pytest

import reanchor.calibration
from reanchor.loading import Pair, load_pair


@pytest.fixture(scope="session")
def demo_pair() -> Pair:
    return load_pair("demo", "demo", dtype="float32", device="cpu")


@pytest.fixture(autouse=True)
def no_costs_in_the_users_cache(tmp_path_factory, monkeypatch):
    """What tiny models take on a busy machine is nothing to remember."""
    file = tmp_path_factory.getbasetemp() / "costs.json"
    monkeypatch.setattr(reanchor.calibration, "cache_file", lambda: file)
