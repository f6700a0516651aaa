"""What training writes is z-lab's format: their own code reads a baseline of ours and drafts the same."""

from __future__ import annotations

import pytest
import torch

from reanchor.core import Retained
from reanchor.drafters.load import load_drafter
from reanchor.training.drafter_shape import DrafterShape
from reanchor.training.initialization import init_drafter
from tests.drafters.writer import MASK, H, V, tiny_target

BLOCK = 4


def test_zlab_reads_a_baseline_of_ours(tmp_path):
    original = pytest.importorskip("dflash.model", reason="the PyPI package dflash is not installed")
    target = tiny_target(seed=3).float().requires_grad_(False)
    init_drafter(tmp_path, None, DrafterShape(BLOCK, "1,3", "0,2,4", MASK), target, carryover=False)
    ours = load_drafter(tmp_path, target)
    theirs = original.DFlashDraftModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours_cache, their_cache, start = ours.new_cache(), original._make_cache(theirs.config), 0
    for turn, new in enumerate((9, 1, 4, 2)):
        features = torch.randn(new, 3 * H, generator=torch.Generator().manual_seed(turn))
        anchor, start = 11 * turn % V, start + new
        ours.commit(features, ours_cache)
        ids = torch.tensor([[anchor] + [MASK] * (BLOCK - 1)])
        with torch.no_grad():
            hidden = theirs(
                target_hidden=features[None],
                noise_embedding=original._raw_input_embeddings(target, ids),
                position_ids=torch.arange(start - new, start + BLOCK)[None],
                past_key_values=their_cache,
                use_cache=True,
            )[:, 1:]
            original._crop_to(their_cache, start)
            expected = theirs.compute_logits(hidden, target.lm_head).argmax(-1)[0].tolist()
        assert ours.draft(anchor, Retained(), (), ours_cache).blocks == [[anchor, *expected]]
