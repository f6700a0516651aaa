"""Where an original implementation can be installed, it writes the checkpoint and says what is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

from reanchor.core import Retained
from reanchor.drafters.load import load_drafter

from .writer import HD, HEADS, INNER, KV, MASK, TARGET_LAYERS, H, V, tiny_target

TAPS, BLOCK, LAYERS = [0, 2, 4], 5, 3
FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_target(seed=3).float().requires_grad_(False)


def qwen3(**changes: Any) -> dict[str, Any]:
    return {
        "hidden_size": H,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": HD,
        "vocab_size": V,
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "initializer_range": 0.3,
    } | changes


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(5)
    for name, value in sorted(model.state_dict().items()):
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator) * 0.3
            value.copy_(1 + noise if "norm" in name else noise)
    return model.eval()


def features_of(count: int, seed: int) -> Tensor:
    return torch.randn(count, len(TAPS) * H, generator=torch.Generator().manual_seed(seed))


DFLASH: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding mix": {
        "layer_types": [SLIDING, SLIDING, FULL],
        "sliding_window": 7,
        "use_sliding_window": True,
        "max_window_layers": 0,
    },
    "sliding, not causal": {
        "layer_types": [SLIDING, FULL, SLIDING],
        "sliding_window": 7,
        "use_sliding_window": True,
        "max_window_layers": 0,
        "is_causal": False,
    },
    "causal, scaled": {"is_causal": True, "attention_bias": True, "final_logit_softcapping": 3.0},
}
DFLASH2 = {
    "conv_kernel_size": 2,
    "conv_group_size": 8,
    "selector_rank": 6,
    "selector_top_k": 5,
    "output_multiplier": 0.5,
    "final_logit_softcapping": 3.0,
}


def zlab_model(original: Any, second: bool, case: str) -> Any:
    nested = {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": TAPS}
    config = Qwen3Config(**qwen3(**DFLASH[case], num_target_layers=TARGET_LAYERS))
    config.dflash_config = nested | DFLASH2 if second else nested
    config.num_target_layers = TARGET_LAYERS
    kind = original.DFlash2DraftModel if second else original.DFlashDraftModel
    return randomised(kind(config))


@pytest.mark.parametrize("case", DFLASH)
@pytest.mark.parametrize("second", [False, True], ids=["DFlash", "DFlash2"])
def test_zlab_across_rounds(case: str, second: bool, target: LlamaForCausalLM, tmp_path: Path) -> None:
    """Their own cache protocol beside ours: same proposals, round after round."""
    original = pytest.importorskip("dflash.model", reason="the PyPI package dflash is not installed")
    model = zlab_model(original, second, case)
    model.save_pretrained(tmp_path)
    drafter = load_drafter(tmp_path, target)
    cache, theirs = drafter.new_cache(), original._make_cache(model.config)
    start = 0
    for turn, new in enumerate((9, 1, 4, 2, 5, 3)):
        features, anchor = features_of(new, turn), 11 * turn % V
        start += new
        drafter.commit(features, cache)
        ids = torch.tensor([[anchor] + [MASK] * (BLOCK - 1)])
        with torch.no_grad():
            hidden = model(
                target_hidden=features[None],
                noise_embedding=original._raw_input_embeddings(target, ids),
                position_ids=torch.arange(start - new, start + BLOCK)[None],
                past_key_values=theirs,
                use_cache=True,
            )[:, 1:]
            original._crop_to(theirs, start)
            if second:
                expected = model.propose(hidden, ids[:, 0], target.lm_head, 0.0)[0]
            else:
                expected = model.compute_logits(hidden, target.lm_head).argmax(-1)
        draft = drafter.draft(anchor, Retained(), (), cache)
        assert draft.blocks == [[anchor, *expected[0].tolist()]], f"round {turn}"
    assert len(cache) == start


def speculators_model(kind: str, reduced: bool, head: str) -> Any:
    """Their model class; the anchors of a forward pass are the positions its loss mask allows."""
    from speculators import SpeculatorModelConfig
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import DFlashDraftModel
    from speculators.models.dspark import DSparkDraftModel
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    layer = Qwen3Config(
        **qwen3(
            layer_types=[SLIDING, FULL, FULL],
            sliding_window=200,
            use_sliding_window=True,
            max_window_layers=0,
        )
    )
    layer._attn_implementation = "eager"
    from speculators.models.dflash2 import DFlash2DraftModel

    model, extra = {
        "dflash": (DFlashDraftModel, {}),
        "dflash2": (DFlash2DraftModel, {"conv_group_size": 8, "selector_rank": 6, "selector_top_k": 5}),
        "dspark": (DSparkDraftModel, {"markov_rank": 6, "markov_head_type": head}),
    }[kind]
    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    config = SpeculatorModelConfig.registry[kind](
        transformer_layer_config=layer,
        draft_vocab_size=40 if reduced else V,
        block_size=BLOCK,
        aux_hidden_state_layer_ids=[tap + 1 for tap in TAPS],
        mask_token_id=MASK,
        speculators_config=SpeculatorsConfig(
            algorithm=kind,
            proposal_methods=[
                GreedyTokenProposalConfig(speculative_tokens=BLOCK if kind == "dspark" else BLOCK - 1)
            ],
            default_proposal_method="greedy",
            verifier=verifier,
        ),
        **extra,
    )
    return model(config)


def with_vocabulary(model: Any) -> Any:
    kept = torch.randperm(V, generator=torch.Generator().manual_seed(8))[:40].sort().values
    mask = torch.zeros(V, dtype=torch.bool)
    mask[kept] = True
    model.load_vocab_mappings(mask, kept - torch.arange(40))
    return model


@pytest.mark.parametrize("reduced", [True, False], ids=["reduced", "whole"])
@pytest.mark.parametrize("kind", ["dflash", "dflash2", "vanilla", "gated", "rnn"])
def test_speculators(kind: str, reduced: bool, target: LlamaForCausalLM, tmp_path: Path) -> None:
    """One anchor of their training pass against one draft of ours, on the checkpoint they save."""
    pytest.importorskip("speculators.models.dspark", reason="the PyPI package speculators is not installed")
    name = kind if kind.startswith("dflash") else "dspark"
    if kind == "dflash2" and reduced:
        pytest.skip("its selector scores the whole vocabulary only")
    model = randomised(speculators_model(name, reduced, kind))
    if reduced:
        model = with_vocabulary(model)
    model.embed_tokens.weight.data.copy_(target.get_input_embeddings().weight)  # as they are made
    if not reduced:
        model.lm_head.weight.data.copy_(target.lm_head.weight)
    model.save_pretrained(tmp_path)
    drafter = load_drafter(tmp_path, target)
    length, anchor_at = 20, 12
    features, ids = (
        features_of(length, 2),
        torch.randint(0, V, (1, length), generator=torch.Generator().manual_seed(1)),
    )
    cache = drafter.new_cache()
    drafter.commit(features[:anchor_at], cache)
    draft = drafter.draft(int(ids[0, anchor_at]), Retained(), (), cache, V)
    hidden, logits = backbone(model, features, ids, anchor_at)
    expected = speculated(model, hidden, logits, draft.blocks[0][0])
    assert draft.blocks == [[int(ids[0, anchor_at]), *expected]]


def backbone(model: Any, features: Tensor, ids: Tensor, anchor_at: int) -> tuple[Tensor, Tensor]:
    length = ids.shape[1]
    allowed = torch.zeros(1, length)
    allowed[0, anchor_at] = 1
    call: Callable[..., Any] = model._backbone_forward
    with torch.no_grad():
        hidden, logits, *_ = call(
            features[None],
            ids,
            allowed,
            torch.zeros(1, length, H),
            torch.zeros(1, length, dtype=torch.long),
            max_anchors=1,
        )
    return hidden[0], logits[0]  # [B, H], [B, Vd]


def speculated(model: Any, hidden: Tensor, logits: Tensor, anchor: int) -> list[int]:
    """Greedy tokens of one block by the class's own parts, each bias from the whole prefix again."""
    shifted, head = model.config.sample_from_anchor, getattr(model, "markov_head", None)
    selector = getattr(model, "candidate_selector", None)
    tokens: list[int] = []
    first = 0 if shifted else 1
    for slot in range(first, BLOCK):
        scores = logits[slot]
        if head is not None:
            before = torch.tensor([[anchor, *tokens]])
            with torch.no_grad():
                bias = head.block_bias(prev_token_ids=before, hidden_states=hidden[None, first : slot + 1])
            scores = scores + bias[0, -1]
        if selector is not None:
            before = torch.tensor([tokens[-1] if tokens else anchor])
            with torch.no_grad():
                ids, edges = selector.select(scores[None], hidden[slot][None], before)
            tokens.append(int(ids[0, edges[0].argmax()]))
            continue
        best = int(scores.argmax())
        tokens.append(best if model.d2t is None else best + int(model.d2t[best]))
    return tokens
