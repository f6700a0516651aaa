"""The embedded pair, loaded once: its conversion is cached on disk, the model for the session."""

from __future__ import annotations

import pytest

from reanchor.loading import Pair, load_pair


@pytest.fixture(scope="session")
def demo_pair() -> Pair:
    return load_pair("demo", "demo", dtype="float32", device="cpu")
