"""A decode of whole rounds is the decode of the host's path: the same tokens, trees, results and retained states."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import TypicalLogitsWarper

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.attention import triton
from reanchor.fused import graph_runner
from reanchor.fused.graph_runner import StaticBuffers
from reanchor.graphs import graphed_rounds
from reanchor.sampling import TokenSelector
from tests.fused.models import variant
from tests.graphs.drafters import KINDS, ScriptedBlocks, block_drafter
from tests.tiny import SHAPE, VOCAB, greedy

PROMPT = torch.arange(3, 14)
NAMES = ["llama", "qwen2", "qwen3 sliding", "gemma2", "gemma3", "gemma4"]
FEW = 5  # tokens of a vocabulary in which random drafts are accepted now and then


@pytest.fixture(autouse=True)
def small_arenas(monkeypatch):
    monkeypatch.setattr(graph_runner, "MIN_ROWS", 256)


def few_tokens(seed: int = 1) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape = {**SHAPE, "vocab_size": FEW, "bos_token_id": None, "pad_token_id": None}
    model = LlamaForCausalLM(LlamaConfig(**shape)).double().eval()
    model.generation_config.eos_token_id = None
    return model


def decode(model, drafter, prompt=PROMPT, new=48, end_ids=(), **knobs):
    """All that steps say, and the decoder."""
    decoder = SpeculativeDecoder(
        model,
        drafter,
        DecodeConfig.of(forward="fused", **{"method": "reanchor" if drafter else "plain", **knobs}),
    )
    steps = list(decoder.decode(prompt, SamplingConfig(max_new_tokens=new), end_ids=end_ids))
    told = [
        (
            step.tokens,
            step.tree,
            step.result,
            step.drafted,
            step.retained,
            step.stopped,
            step.plan,
            step.accepted,
        )
        for step in steps
    ]
    return told, decoder


def same(model, drafter, prompt=PROMPT, least=1, **terms) -> list:
    """Decode both ways; at least this many rounds have to be whole ones."""
    expected, _ = decode(model, drafter, prompt, **terms)
    got, decoder = decode(model, drafter, prompt, graphs=True, **terms)
    assert got == expected
    assert decoder.forward_report()["graphs"]["whole_rounds"] >= least
    return got


@pytest.mark.parametrize("name", NAMES)
def test_plain_decoding(name):
    model = variant(name)
    told = same(model, None, least=47)
    assert [token for step in told for token in step[0]] == greedy(model, PROMPT, 48)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["dflash", "reanchor"])
def test_scripted_drafts(name, method):
    model = variant(name)
    drafter = ScriptedBlocks([*PROMPT.tolist(), *greedy(model, PROMPT, 64)], VOCAB)
    told = same(model, drafter, least=5, method=method)
    assert max(step[-1] for step in told) >= 2
    if method == "reanchor":
        assert max(step[3] for step in told) > 1 and max(step[1].matched for step in told) > 0


@pytest.mark.parametrize("attach", ["earliest", "fixed"])
@pytest.mark.parametrize("retention", ["first", "longest"])
@pytest.mark.parametrize("more", [{}, {"max_nodes": 6}, {"max_nodes": 1}, {"max_shifts": 2}], ids=str)
def test_rules_and_budgets(attach, retention, more):
    model, prompt = few_tokens(), PROMPT % FEW
    same(model, block_drafter(model), prompt, least=8, attach=attach, retention=retention, **more)


@pytest.mark.parametrize("seed", [0, 1, 3, 4])
@pytest.mark.parametrize("method", ["dflash", "reanchor"])
def test_block_drafters(method, seed):
    """Fewer drafts would be the same if the drafter read other features: so they have to be accepted alike."""
    model, prompt = few_tokens(seed), PROMPT % FEW
    told = same(model, block_drafter(model, seed=seed), prompt, least=10, method=method)
    assert sum(step[-1] for step in told) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_drafters_of_every_kind(kind):
    model, prompt = few_tokens(), PROMPT % FEW
    drafter = block_drafter(model, **KINDS[kind])
    told = same(model, drafter, prompt, least=10)
    assert sum(step[-1] for step in told) > 0 and max(step[3] for step in told) > 1
    if "confidence" in KINDS[kind]:
        assert len({len(path) for step in told for path in step[1].paths[:1]}) > 2  # blocks are cut


@pytest.mark.parametrize("new", [1, 2, 3, 7, 20])
def test_the_limit_cuts_as_it_does_on_the_host(new):
    model = variant("llama")
    drafter = ScriptedBlocks([*PROMPT.tolist(), *greedy(model, PROMPT, 64)], VOCAB, right=4, miss=1000)
    told = same(model, drafter, least=0, new=new)
    assert sum(len(step[0]) for step in told) == new


@pytest.mark.parametrize("place", range(1, 14))
def test_an_end_within_a_round(place):
    model = variant("llama")
    truth = greedy(model, PROMPT, 64)
    drafter = ScriptedBlocks([*PROMPT.tolist(), *truth], VOCAB, right=4, miss=1000)
    told = same(model, drafter, least=0, end_ids=(truth[place], VOCAB - 1))
    assert [token for step in told for token in step[0]] == truth[: truth.index(truth[place]) + 1]


def test_one_decode_after_another_on_the_same_rows():
    model = variant("llama")
    truth = greedy(model, PROMPT, 64)
    drafter = ScriptedBlocks([*PROMPT.tolist(), *truth], VOCAB)
    decoder, held = SpeculativeDecoder(model, drafter, DecodeConfig("reanchor", graphs=True)), []
    for end_ids in ((), (), (truth[20],)):
        steps = decoder.decode(PROMPT, SamplingConfig(max_new_tokens=40), end_ids=end_ids)
        tokens = [token for step in steps for token in step.tokens]
        assert tokens == truth[: truth.index(truth[20]) + 1 if end_ids else 40]
        del steps
        held.append({key: id(region) for key, region in decoder.target.regions.arenas[0].regions.items()})
        assert len(decoder.target.regions.arenas) == 1 and decoder.whole.counts.played
    assert held[0] == held[1] != held[2]  # nothing is captured again before other tokens end a text


def test_threads_take_turns_by_round(monkeypatch):
    model, truth = variant("llama"), greedy(variant("llama"), PROMPT, 64)
    drafter = ScriptedBlocks([*PROMPT.tolist(), *truth], VOCAB)
    decoder, free = (
        SpeculativeDecoder(model, drafter, DecodeConfig("reanchor", graphs=True)),
        StaticBuffers.free,
    )

    def slowly(arena: StaticBuffers) -> bool:
        found = free.fget(arena)
        time.sleep(0.01)
        return found

    def work(together: threading.Barrier) -> list[int]:
        together.wait(timeout=60)
        steps = decoder.decode(PROMPT, SamplingConfig(max_new_tokens=40))
        first = next(steps)
        together.wait(timeout=60)  # none ends before all hold a cache, however the threads are scheduled
        return [*first.tokens, *(token for step in steps for token in step.tokens)]

    assert work(threading.Barrier(1)) == truth[:40]
    gc.collect()  # its rows are free now, for one of the next
    monkeypatch.setattr(StaticBuffers, "free", property(slowly))
    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(work, [threading.Barrier(3)] * 3)] == [truth[:40]] * 3
    assert len(decoder.target.regions.arenas) == 3


def test_counts_are_of_one_decode_each():
    model, truth = variant("llama"), greedy(variant("llama"), PROMPT, 64)
    drafter = ScriptedBlocks([*PROMPT.tolist(), *truth], VOCAB)
    decoder, reports = SpeculativeDecoder(model, drafter, DecodeConfig("reanchor", graphs=True)), []
    list(decoder.decode(PROMPT, SamplingConfig(max_new_tokens=40)))
    alone = decoder.forward_report()["graphs"]["whole_rounds"]
    runs = [decoder.decode(PROMPT, SamplingConfig(max_new_tokens=40)) for _ in range(2)]
    for _ in zip(*runs, strict=True):
        reports.append(decoder.forward_report()["graphs"]["whole_rounds"])
    assert reports[-1] == alone > 0


def test_rows_that_grow(monkeypatch):
    monkeypatch.setattr(graph_runner, "MIN_ROWS", 0)
    monkeypatch.setattr("reanchor.cache.SLACK", 24)
    model, prompt = few_tokens(), PROMPT % FEW
    same(model, block_drafter(model), prompt, least=100, new=300)


def test_a_trie_larger_than_its_bucket_is_run_again():
    model = few_tokens()
    drafter = block_drafter(model)
    terms = {"prompt": PROMPT % FEW, "method": "reanchor"}
    expected, _ = decode(model, drafter, **terms)
    got, decoder = decode(model, drafter, graphs=True, **terms)
    again = decoder.forward_report()["graphs"]["run_again"]
    assert got == expected and again > 0
    assert max(len(step[1].tokens) for step in got) > 16


def test_rounds_of_the_larger_buckets():
    """Many shifted blocks make a wide tree."""
    model, terms = few_tokens(), {"prompt": PROMPT % FEW, "new": 64}
    drafter = block_drafter(model, block_size=12)
    expected, _ = decode(model, drafter, **terms)
    got, decoder = decode(model, drafter, graphs=True, **terms)
    assert got == expected and max(len(step[1].tokens) for step in got) > 64
    rounds_of = {key[1] for key in decoder.target.regions.arenas[0].regions if key[0] == "round"}
    assert {16, 128} <= rounds_of


def test_whole_rounds_and_the_host_s_take_turns(monkeypatch):
    """Every third round is refused: what either path leaves, the other takes up."""
    turns = iter(range(10**6))
    own = graphed_rounds.GraphedDecode.unfit
    monkeypatch.setattr(
        graphed_rounds.GraphedDecode,
        "unfit",
        lambda self, blocks: own(self, blocks) or (next(turns) % 3 == 0 and "a whim") or None,
    )
    model, prompt = few_tokens(), PROMPT % FEW
    same(model, block_drafter(model), prompt, least=8)
    truth = greedy(variant("gemma3"), PROMPT, 64)
    same(variant("gemma3"), ScriptedBlocks([*PROMPT.tolist(), *truth], VOCAB), least=4)


def test_a_drafter_given_other_weights_is_followed():
    model, prompt = few_tokens(), PROMPT % FEW
    drafter, other = block_drafter(model), block_drafter(model, seed=4)
    decoder = SpeculativeDecoder(model, drafter, DecodeConfig("reanchor", graphs=True))
    list(decoder.decode(prompt, SamplingConfig(max_new_tokens=32)))
    drafter.load_state_dict(other.state_dict(), assign=True)
    steps = list(decoder.decode(prompt, SamplingConfig(max_new_tokens=32)))
    expected, _ = decode(model, other, prompt, new=32)
    assert [step.tree for step in steps] == [each[1] for each in expected]


def refused(reason: str, drafter=None, selector=None, **knobs) -> None:
    model = few_tokens()
    decoder = SpeculativeDecoder(
        model,
        drafter or block_drafter(model),
        DecodeConfig.of(graphs=True, **{"method": "reanchor", **knobs}),
    )
    list(decoder.decode(PROMPT % FEW, SamplingConfig(max_new_tokens=12), selector=selector))
    report = decoder.forward_report()["graphs"]
    assert report["whole_rounds"] == 0 and reason in next(iter(report["host_rounds"]))


def test_what_goes_by_the_host_says_why():
    refused("transformers' forward", forward="transformers")
    refused("method auto", method="auto", max_nodes=8)
    refused("method ddtree", method="ddtree")
    refused("the host's", attach="longest")
    refused("the host's", verifier_path="path")
    refused(
        "(dynamic) change",
        block_drafter(few_tokens(), rope={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    )
    drawn = TokenSelector(PROMPT % FEW, 12, sample=True)
    refused("rejection", selector=drawn, method="dflash", sampling_mode="rejection")
    rules = [TypicalLogitsWarper(0.9)]
    refused("TypicalLogitsWarper", selector=TokenSelector(PROMPT % FEW, 12, sample=True, processors=rules))
    refused("greedy", selector=TokenSelector(PROMPT % FEW, 12, processors=rules))
    refused(
        "criteria",
        selector=TokenSelector(PROMPT % FEW, 12, criteria=[lambda ids, scores: torch.tensor([False])]),
    )


def test_a_failed_capture_leaves_the_round_to_the_host(monkeypatch):
    model, prompt = few_tokens(), PROMPT % FEW
    drafter = block_drafter(model)
    expected, _ = decode(model, drafter, prompt)
    decoder = SpeculativeDecoder(model, drafter, DecodeConfig("reanchor", graphs=True))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)
    said: list[str] = []

    def fail(region, *_where):
        if isinstance(region, graphed_rounds.VerifyGraph):
            raise RuntimeError("no graph today")

    monkeypatch.setattr(graph_runner.CapturedGraph, "capture", fail)
    decoder.target.regions.capturing, decoder.target.regions.say = True, said.append
    steps = list(decoder.decode(prompt, SamplingConfig(max_new_tokens=48)))
    assert [(step.tokens, step.tree) for step in steps] == [each[:2] for each in expected]
    assert said[-1].startswith("Capturing the graph of a round of") and any(
        "draft of" in line for line in said
    )
    assert "no graph today" in decoder.forward_report()["graphs"]["refused"]


def traced(spoil=lambda region: None, **kind) -> None:
    """Both regions under tensors without values, attention standing as it would on CUDA."""
    pytest.importorskip("triton", reason="triton is not installed")
    model = few_tokens().to(torch.bfloat16)
    _, decoder = decode(model, block_drafter(model, **kind), PROMPT % FEW, new=24, graphs=True)
    held = decoder.target.regions.arenas[0].regions
    decoder.target.attention.attend = triton.attend
    held = {key: region for key, region in held.items() if isinstance(key, tuple)}
    draft = next(region for key, region in held.items() if ("draft", 1) < key < ("round",))
    round_ = next(region for key, region in held.items() if key[0] == "round")
    spoil(round_)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fake(draft.state, mode)
        draft.draft.projected = mode.from_tensor(draft.draft.projected)
        draft.draft.buffers = [mode.from_tensor(each) for each in draft.draft.buffers]
        draft.run()
        round_.length = round_.passed.length = mode.from_tensor(round_.length)
        round_.buffers = [mode.from_tensor(each) for each in round_.buffers]
        round_.passed.rows = [tuple(map(mode.from_tensor, pair)) for pair in round_.passed.rows]
        assert round_.run().ndim == 1


def fake(state, mode) -> None:
    state.depth = mode.from_tensor(state.depth)
    for part in (state.fed, state.tree):
        for name, value in vars(part).items():
            object.__setattr__(part, name, mode.from_tensor(value))


@pytest.mark.parametrize("kind", [{}, *KINDS.values()], ids=["none", *KINDS])
def test_no_region_asks_the_host(kind):
    traced(**kind)


def test_a_region_that_asks_is_caught():
    def spoil(region) -> None:
        own = region.retained
        region.retained = lambda tree, result: (int(result.count), own(tree, result))[1]

    with pytest.raises(DataDependentOutputException):
        traced(spoil)
