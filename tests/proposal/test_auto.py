"""Method auto: the best tree for its prices, the same tokens as plain decoding, and no look at what it is to guess."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reanchor.decoder
import reanchor.loop
import reanchor.top_candidates
from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.core import BASELINE, Draft, Retained, VerifyResult
from reanchor.noise import SamplingNoise
from reanchor.proposal import TreeBuilder
from reanchor.proposal.auto import draft_sources, grow_tree
from reanchor.proposal.latency import LatencyModel
from reanchor.proposal.mixture import SourceMixture
from reanchor.proposal.sources import CandidateSet
from reanchor.sampling import TokenSelector
from reanchor.stats import Recorder
from tests import test_sampling as sampling
from tests.proposal.proposers import assemble, auto_proposer
from tests.tiny import FAMILIES, ScriptedDrafter, greedy, tiny_target

PROMPT = torch.tensor([3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9])
NEW = 30


class Guesser(ScriptedDrafter):
    """Two candidates at every position; the right one is second where `mode` plans a mistake."""

    def draft(self, anchor, retained, shifts, cache, top_k=0) -> Draft:
        draft = super().draft(anchor, retained, shifts, cache)
        truth = [self._truth(len(cache) + offset + 1, self.proposals) for offset in draft.offsets]
        rows = [
            [
                [first, second if second != first else (second + 1) % self.vocab]
                for first, second in zip(*each, strict=True)
            ]
            for each in zip([block[1:] for block in draft.blocks], truth, strict=True)
        ]
        fading = 0.97 ** torch.arange(self.proposals)[:, None]  # no ties, which a last bit could turn over
        scores = (torch.tensor([0.6, 0.3]) * fading).log().expand(len(rows), self.proposals, 2)
        return Draft(draft.offsets, draft.blocks, torch.tensor(rows), scores)


def run(model, drafter, new=NEW, **knobs):
    decoder = SpeculativeDecoder(model, drafter, DecodeConfig.of(method="auto", **knobs))
    return list(decoder.decode(PROMPT, SamplingConfig(max_new_tokens=new)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["right", "wrong", "second", "random"])
def test_equals_plain_and_keeps_its_budget(family, mode):
    model = tiny_target(family)
    truth = greedy(model, PROMPT, NEW)
    for budget, shifts in itertools.product((1, 2, 9, None), (None, 0)):
        steps = run(model, Guesser(PROMPT.tolist() + truth, mode), max_nodes=budget, max_shifts=shifts)
        assert [token for step in steps for token in step.tokens] == truth
        for step in steps:
            tree = step.tree
            assert len(tree) <= (budget or 64)
            assert all(parent < node for node, parent in enumerate(tree.parents))
            assert len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree)


def test_it_beats_the_likeliest_tree_of_the_block_where_text_repeats():
    """A wrong drafter, a repeating text: only what was seen before can be accepted."""
    model = tiny_target("llama", seed=2)
    truth = greedy(model, PROMPT, 80)
    drafter = Guesser(PROMPT.tolist() + [(token + 1) % 64 for token in truth], "wrong")
    steps = run(model, drafter, new=80, max_nodes=16)
    assert [token for step in steps for token in step.tokens] == truth
    assert {origin for step in steps for origin in step.origins} & {-3, -4}
    assert len(steps) < 80


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.floats(0.01, 0.49), min_size=2, max_size=2), min_size=7, max_size=7),
    st.integers(1, 16),
    st.integers(0, 3),
)
def test_no_tree_of_the_same_size_is_worth_more(prices, budget, max_depth):
    """Every set of nodes that is a tree, of a full binary world three deep, by brute force."""
    builder = TreeBuilder(0, budget, max_depth)

    def place(node: int) -> int:  # of a node in the heap order of the world: children of p are 2p + 1, 2p + 2
        return 0 if node == 0 else 2 * place(builder.parents[node]) + builder.tokens[node]

    values = grow_tree(
        builder, lambda node: sorted(((p, t, 0) for t, p in enumerate(prices[place(node)], 1)), reverse=True)
    )
    worth = [1.0]
    for node in range(1, 15):
        worth.append(worth[(node - 1) // 2] * prices[(node - 1) // 2][(node - 1) % 2])
    within = [node for node in range(15) if math.floor(math.log2(node + 1)) <= max_depth]
    size = min(budget, len(within))
    best = max(
        math.fsum(worth[node] for node in chosen)
        for chosen in itertools.combinations(within, size)
        if all(node == 0 or (node - 1) // 2 in chosen for node in chosen)
    )
    assert len(builder.tokens) == size and math.fsum(values) == pytest.approx(best)


TERMS = {
    "greedy": SamplingConfig(NEW),
    "sampled": SamplingConfig(
        NEW, temperature=1.0, seed=5
    ),  # drafts know the times of the draw, but no score
}


@pytest.mark.parametrize("budget", [12, None])
@pytest.mark.parametrize("terms", TERMS)
def test_nothing_proposed_depends_on_what_the_target_is_about_to_say(budget, terms, monkeypatch):
    """Plan and tree of every round are the same when that round's output is swapped for noise before anything reads it,
    and another output does make other trees afterwards.
    """
    curves = {1: 1.0, 64: 2.0}, {1: 0.1, 4: 0.3}
    monkeypatch.setattr(reanchor.decoder, "timed_stages", lambda stage, *_: stage)  # no clock here
    monkeypatch.setattr(reanchor.decoder, "calibrate", lambda *_: LatencyModel(*curves))
    model, later = tiny_target("qwen3"), 0
    script = PROMPT.tolist() + greedy(model, PROMPT, NEW)
    kind = type(SpeculativeDecoder(model, Guesser(script), DecodeConfig("auto")).target)

    def rounds(swapped=NEW):
        decoder, count = (
            SpeculativeDecoder(model, Guesser(script, "second"), DecodeConfig("auto", max_nodes=budget)),
            itertools.count(),
        )

        def noise(self, tree, cache):
            output = kind_verify(self, tree, cache)
            if next(count) + 1 < swapped:
                return output
            return type(output)(torch.randn_like(output.logits), torch.randn_like(output.features))

        with monkeypatch.context() as patch:
            patch.setattr(kind, "verify", noise)
            return [(step.plan, step.tree) for step in decoder.decode(PROMPT, TERMS[terms])]

    kind_verify = kind.verify
    honest = rounds()
    for swapped in range(1, len(honest)):
        noisy = rounds(swapped)
        assert noisy[: swapped + 1] == honest[: swapped + 1]
        later += noisy[swapped + 1 :] != honest[swapped + 1 :]
    assert later > 0.8 * (len(honest) - 2)


def test_assembling_changes_nothing_that_was_learnt():
    draft = Draft((0,), [[2, 3]], torch.tensor([[[3, 4]]]), torch.tensor([[[0.6, 0.3]]]).log())
    small, large = auto_proposer([1, 2, 3, 1, 2], 4), auto_proposer([1, 2, 3, 1, 2], 8)
    trees = []
    for auto in (small, large, large):
        before = copy.deepcopy((auto.prices.shares, auto.recall.known, auto.text.followers))
        auto.plan(0, 5)
        trees.append(auto.assemble(draft, Retained(), 5))
        assert (auto.prices.shares, auto.recall.known, auto.text.followers) == before
    assert trees[1] == trees[2]
    assert trees[0].tokens == trees[1].tokens[:4]  # the best of four is the beginning of the best of eight


@pytest.mark.parametrize("steep", [False, True])
def test_costs_choose_the_size_and_nothing_else(steep, monkeypatch):
    """Where nodes are free everything is verified; where each costs a pass, decoding is plain but for probes."""
    curve = {1: 1.0, 64: 64.0 if steep else 1.0}
    monkeypatch.setattr(
        reanchor.decoder, "calibrate", lambda *_: LatencyModel(curve, {1: 5.0 if steep else 1e-6})
    )
    model = tiny_target("qwen3")
    truth = greedy(model, PROMPT, 80)
    decoder = SpeculativeDecoder(model, Guesser(PROMPT.tolist() + truth, "wrong"), DecodeConfig("auto"))
    monkeypatch.setattr(reanchor.decoder, "timed_stages", lambda stage, *_: stage)  # no clock here
    recorder = Recorder("auto", len(PROMPT))
    tokens = []
    for step in decoder.decode(PROMPT, SamplingConfig(max_new_tokens=80), stage=recorder.stage):
        recorder.add(step)
        tokens += step.tokens
    assert tokens == truth
    figures = recorder.stats.to_dict()
    plans, rounds = figures["plans"], figures["per_round"]
    assert sum(plans.values()) == figures["rounds"] and figures["expected_tau"] > 0
    plain = plans.get("plain, pays", 0)
    if steep:
        assert plain > 0.5 * figures["rounds"] and any("probe" in name for name in plans)
        assert all(each["nodes"] == 1 and not each["blocks"] for each in rounds if each["plan"] == "plain")
    else:
        assert not plain and max(each["nodes"] for each in rounds) > 32


def test_what_the_target_said_at_rejected_nodes_is_remembered():
    """As after full acceptance, where it is all that is left; an accepted node has the last word on its context."""
    auto, builder = auto_proposer([1], 9), TreeBuilder(1)
    for path in ([1, 5, 7], [1, 6, 5]):
        builder.insert(path, BASELINE)
    tree = builder.freeze()  # the nodes 5, 7, 6, 5 from 1 on
    believed = [{6: 0.9}, {9: 0.7}, {8: 0.6}, {5: 0.8}, {4: 0.5}]
    auto.observe(tree, VerifyResult([0, 3, 4], [6, 5, 2], [0] * 5, False), lambda: believed, [])

    def recalled(*path):
        return {claim.source: claim.chances for claim in auto.recall.claims(path, 0)}

    assert recalled(1, 5) == {"recall 2": {9: 0.7}, "recall 1": {4: 0.5}}
    assert recalled(5, 7) == {"recall 2": {8: 0.6}, "recall 1": {8: 0.6}}
    assert recalled(1, 6) == {"recall 2": {5: 0.8}, "recall 1": {5: 0.8}}


def test_a_round_leaves_all_its_tokens_and_the_rows_of_the_states_that_are_retained():
    auto, builder = auto_proposer([1], 9), TreeBuilder(1)
    for path in ([1, 5, 7, 8], [1, 6]):
        builder.insert(path, BASELINE)
    believed = [{5: 0.9}, {6: 0.8}, {8: 0.7}, {9: 0.6}, {4: 0.5}]  # of the nodes 1, 5, 7, 8, 6
    auto.observe(builder.freeze(), VerifyResult([0, 1], [5, 6], [0] * 5, False), lambda: believed, [2, 3])
    assert auto.text.text == [1, 5, 6]
    auto.plan(0, 9)
    tree = auto.assemble(Draft((), [[6]]), Retained(), 9)

    def verifier(node):
        return [claim.chances for claim in auto.claims(tree, node) if claim.source == "verifier"]

    assert verifier(0) == [{8: 0.7}] and verifier(tree.children[0, 8]) == [{9: 0.6}]


def test_every_round_races_against_its_own_times():
    """The text says 2 and 3 alike: the first round's times favour one, the second's the other."""
    rounds = [torch.tensor([1.0, 1.0, 0.1, 1.0]), torch.tensor([1.0, 1.0, 1.0, 0.1])]
    auto = auto_proposer([1, 2, 1, 3, 1], 2, sampled=True, times=lambda _depth: rounds[0])
    for favoured in (2, 3):
        auto.plan(0, 1)
        tree = auto.assemble(Draft((), [[1]]), Retained(), 1)
        assert tree.tokens == [1, favoured]
        auto.observe(tree, VerifyResult([0], [1], [1, 1], False), lambda: [{}, {}], [])
        rounds.pop(0)


@pytest.mark.parametrize("budget", [None, 9])
@pytest.mark.parametrize("new", [2, 3, 7])
def test_a_last_round_without_room_for_a_draft_plans_none(new, budget, monkeypatch):
    """Else the figures would say that a block was drafted, and later decodes that it was worth nothing."""
    costs = LatencyModel({1: 1.0, 64: 1.0}, {1: 1e-6})
    monkeypatch.setattr(reanchor.decoder, "calibrate", lambda *_: costs)
    model = tiny_target("qwen3")
    decoder = SpeculativeDecoder(model, Guesser([1] * 99, "wrong"), DecodeConfig("auto", max_nodes=budget))
    drafts = 0
    for _ in range(3):
        steps = list(decoder.decode(PROMPT, SamplingConfig(max_new_tokens=new)))[1:]
        assert [step.plan.blocks > 0 for step in steps] == [step.drafted > 0 for step in steps]
        assert new > 2 or [step.plan.name for step in steps] == ["plain"]
        drafts += sum(step.drafted > 0 for step in steps)
    assert new == 2 or drafts
    assert budget or costs.experience.seen["baseline"] == drafts


def test_a_given_budget_is_kept_to():
    model = tiny_target("qwen3")
    decoder = SpeculativeDecoder(model, Guesser(PROMPT.tolist()), DecodeConfig("auto", max_nodes=9))
    assert decoder.costs() is None
    steps = list(decoder.decode(PROMPT, SamplingConfig(max_new_tokens=12)))[1:]
    assert {step.plan.why for step in steps} == {"fixed"}


def test_a_drafter_without_candidates_is_taken_at_its_word():
    model, prompt = tiny_target(), PROMPT
    script = prompt.tolist() + greedy(model, prompt, 40)
    decoder = SpeculativeDecoder(model, ScriptedDrafter(script), DecodeConfig("auto", max_nodes=8))
    steps = list(decoder.decode(prompt, SamplingConfig(max_new_tokens=30)))
    assert [token for step in steps for token in step.tokens] == script[len(prompt) :][:30]
    assert sum(origin == BASELINE for step in steps for origin in step.origins) > 5


class RandomGuesser(Guesser):
    def __init__(self, script, _mode, block_size, vocab) -> None:
        super().__init__(script, "random", block_size, vocab)


class Racer(RandomGuesser):
    """Scores of every token at every position, and what of them would win the race."""

    supports_coupling = True

    def draft(self, anchor, retained, shifts, cache, top_k=0, couple=None) -> Draft:
        plain = ScriptedDrafter.draft(self, anchor, retained, shifts, cache)
        scores = torch.randn(len(plain.offsets), self.proposals, self.vocab, generator=self.generator)
        if couple is not None:
            places = [offset + index for offset in plain.offsets for index in range(self.proposals)]
            scores = couple(scores.flatten(0, 1), places, None).view_as(scores)
        log_probs, candidates = scores.log_softmax(-1).topk(self.vocab)
        blocks = [
            [block[0], *row] for block, row in zip(plain.blocks, candidates[:, :, 0].tolist(), strict=True)
        ]
        return Draft(plain.offsets, blocks, candidates, log_probs)


model = sampling.model  # the fixture of a target whose every sequence can be counted


@pytest.mark.parametrize("method", ["auto", "dflash", "reanchor", "ddtree"])
@pytest.mark.parametrize("rules", ["t1", "t0.7-top-p", "penalty"])
def test_sampled_tokens_have_the_targets_distribution(model, rules, method, monkeypatch):
    """Drafts race: they know the numbers that the target's draw is decided by."""
    monkeypatch.setattr(sampling, "ScriptedDrafter", Racer)
    joint = sampling.exact(model, sampling.processors(rules))
    config = DecodeConfig(
        method, max_nodes=9, sampling_mode="exact-match" if rules == "penalty" else "coupled"
    )
    counts = sampling.draws(model, sampling.processors(rules), config, 1200 if method == "auto" else 600)
    assert sampling.p_value(counts, joint) > 1e-3


@pytest.mark.parametrize("rules", ["t1", "t1.3-top-k", "penalty"])
def test_sizes_that_are_chosen_and_what_decodes_before_taught_leave_the_distribution(
    model, rules, monkeypatch
):
    """One decoder for all decodes: plans, sizes and prices follow what was drawn before."""
    monkeypatch.setattr(sampling, "ScriptedDrafter", Racer)
    costs = LatencyModel({1: 1.0, 64: 3.0}, {1: 0.05, 4: 0.1})
    monkeypatch.setattr(reanchor.decoder, "calibrate", lambda *_: costs)
    joint = sampling.exact(model, sampling.processors(rules))
    counts = sampling.draws(model, sampling.processors(rules), DecodeConfig("auto"), 1000)
    assert costs.experience.seen["baseline"] > 20 and costs.experience.prices is not None
    assert sampling.p_value(counts, joint) > 1e-3


def test_a_broken_verifier_fails_the_same_test(model, monkeypatch):
    monkeypatch.setattr(sampling, "ScriptedDrafter", RandomGuesser)
    monkeypatch.setattr(
        reanchor.loop,
        "verify",
        lambda tree, logits, selector, *_: sampling.accepts_any_child(tree, logits, selector),
    )
    config = DecodeConfig("auto", max_nodes=9, sampling_mode="exact-match")
    counts = sampling.draws(model, sampling.processors("t1"), config, 500)
    assert sampling.p_value(counts, sampling.exact(model, sampling.processors("t1"))) < 1e-9


def test_the_states_retained_are_those_of_the_likeliest_rejected_path():
    model = tiny_target("qwen3")
    truth = greedy(model, PROMPT, NEW)
    steps = run(model, Guesser(PROMPT.tolist() + truth, "second"), max_nodes=32)
    lengths = []
    for step in steps:
        node, length = step.result.path[-1], 0
        while node in step.tree.parents:
            node, length = step.tree.parents.index(node), length + 1
        lengths.append(length)
    assert [step.retained for step in steps[1:]] == lengths[:-1] and any(lengths)


def test_a_race_that_cannot_be_foreseen_is_refused(model):
    drafter = Racer([0] * 99, "random", block_size=3, vocab=sampling.VOCAB)
    rules = sampling.processors("penalty")
    for unable, processors, reason in (
        (drafter, rules, "reads the text"),
        (ScriptedDrafter([1] * 9), (), "cannot couple its drafts"),
    ):
        unable.tap_layers = (0,)
        decoder = SpeculativeDecoder(model, unable, DecodeConfig("dflash", sampling_mode="coupled"))
        with pytest.raises(ValueError, match=f"{reason}.*use sampling_mode 'exact-match'"):
            list(
                decoder.decode(
                    sampling.PROMPT,
                    selector=TokenSelector(sampling.PROMPT, 6, sample=True, processors=processors),
                )
            )


def test_times_that_come_again_fail_the_same_test(model, monkeypatch):
    """A position whose times were another's has tokens that depend on those before."""
    monkeypatch.setattr(sampling, "ScriptedDrafter", Racer)
    monkeypatch.setattr(SamplingNoise, "advance", lambda self: None)
    counts = sampling.draws(model, sampling.processors("t1"), DecodeConfig("auto", max_nodes=9), 500)
    assert sampling.p_value(counts, sampling.exact(model, sampling.processors("t1"))) < 1e-6


@pytest.mark.parametrize("sampling_mode", ["exact-match", "coupled"])
@pytest.mark.parametrize("method", ["plain", "dflash", "reanchor", "ddtree", "auto"])
def test_on_a_cpu_a_seed_gives_every_method_the_tokens_of_plain_decoding(model, method, sampling_mode):
    terms = SamplingConfig(max_new_tokens=20, temperature=0.8, seed=7)

    def tokens(config: DecodeConfig) -> list[int]:
        torch.manual_seed(0)
        drafter = Racer([0] * 99, "random", block_size=3, vocab=sampling.VOCAB)
        drafter.tap_layers = (0,)
        decoder = SpeculativeDecoder(model, drafter, config)
        return [token for step in decoder.decode(sampling.PROMPT, terms) for token in step.tokens]

    assert tokens(DecodeConfig(method, max_nodes=9, sampling_mode=sampling_mode)) == tokens(
        DecodeConfig("plain")
    )


def test_beliefs_of_a_large_vocabulary_are_its_likeliest_tokens():
    """Looked for in the likeliest blocks: the same tokens, their probabilities a little too high where it is unsure."""
    logits = torch.randn(3, 128 * 100, generator=torch.Generator().manual_seed(0))
    logits[0, 500], logits[1, 12799] = 15.0, 12.0
    exact, tokens = logits.softmax(-1).topk(reanchor.top_candidates.RECYCLED_TOP_K)
    for row, believed in enumerate(reanchor.top_candidates.top_candidates(logits)):
        assert list(believed) == tokens[row].tolist()
        assert all(
            chance >= known for chance, known in zip(believed.values(), exact[row].tolist(), strict=True)
        )
    sure = reanchor.top_candidates.top_candidates(logits)[0][500]
    assert sure == pytest.approx(float(exact[0, 0]), rel=0.01)


def test_beliefs_are_of_the_temperature_that_is_sampled_at():
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(1))
    for temperature in (0.5, 1.0, 2.0):
        exact = (logits / temperature).softmax(-1)
        for row, believed in enumerate(reanchor.top_candidates.top_candidates(logits, temperature)):
            assert believed == pytest.approx({token: float(exact[row, token]) for token in believed})
    selector = TokenSelector(PROMPT, 9, sample=True, processors=sampling.processors("t0.7-top-p"))
    assert selector.temperature == 0.7 and TokenSelector(PROMPT, 9, sample=True).temperature == 1.0


@pytest.mark.parametrize("sample, warmth", [(True, 0.7), (False, 1.0)])
def test_a_decode_asks_for_beliefs_of_its_own_temperature(sample, warmth, monkeypatch):
    """A greedy one of the scores as they are, whatever the processors."""
    asked, believed = [], reanchor.top_candidates.top_candidates

    def recorded(logits, temperature=1.0):
        asked.append(temperature)
        return believed(logits, temperature)

    monkeypatch.setattr(reanchor.loop, "top_candidates", recorded)
    decoder = SpeculativeDecoder(tiny_target(), Guesser([1] * 99), DecodeConfig("auto", max_nodes=4))
    selector = TokenSelector(PROMPT, 3, sample=sample, processors=sampling.processors("t0.7-top-p"))
    rounds = len(list(decoder.decode(PROMPT, selector=selector)))
    assert asked == [warmth] * rounds and rounds > 1


def test_greedy_and_sampled_decodes_learn_apart(monkeypatch):
    """What a draft is worth differs between the two."""
    monkeypatch.setattr(reanchor.decoder, "calibrate", lambda *_: LatencyModel({1: 1.0}, {1: 1.0}))
    monkeypatch.setattr(reanchor.decoder, "timed_stages", lambda stage, *_: stage)  # no clock here
    decoder = SpeculativeDecoder(tiny_target(), Guesser([1] * 99), DecodeConfig("auto"))

    def learnt():
        return [decoder.costs(sampled).experience.prices is not None for sampled in (False, True)]

    list(decoder.decode(PROMPT, SamplingConfig(3)))
    assert learnt() == [True, False]
    list(decoder.decode(PROMPT, SamplingConfig(3, temperature=1.0)))
    assert learnt() == [True, True]


@pytest.mark.parametrize("method", ["dflash", "reanchor", "ddtree", "auto"])
def test_tokens_drawn_at_every_node_are_those_drawn_along_the_walk(model, method):
    """As on a GPU: nodes of one depth share its times, and another depth has others."""

    class Everywhere(TokenSelector):
        def select_all(self, logits, depths):
            return self.peek(logits, depths)

    def tokens(kind, config):
        drafter = Racer([0] * 99, "random", block_size=3, vocab=sampling.VOCAB)
        drafter.tap_layers = (0,)
        terms = {"sample": True, "generator": torch.Generator().manual_seed(5)}
        steps = SpeculativeDecoder(model, drafter, config).decode(
            sampling.PROMPT, selector=kind(sampling.PROMPT, 40, **terms)
        )
        return [token for step in steps for token in step.tokens]

    config = DecodeConfig(method, max_nodes=9, sampling_mode="coupled")
    assert tokens(Everywhere, config) == tokens(TokenSelector, DecodeConfig("plain"))


def test_what_a_drafter_cut_off_is_no_candidate():
    candidates, log_probs = torch.arange(12).view(1, 3, 4), torch.full((1, 3, 4), -1.4)
    draft = Draft((0,), [[7, 0]], candidates, log_probs)  # the second and third proposal are cut
    (source,) = draft_sources(draft)
    assert [bool(list(source.claims([7], depth))) for depth in range(3)] == [True, False, False]
    tree = assemble(draft, Retained(), DecodeConfig("ddtree", max_nodes=40), 9)
    assert max(tree.depths) == 1 and len(tree) == 5


def test_a_confidence_head_says_how_likely_a_blocks_own_tokens_are():
    scores = torch.tensor([[[0.5, 0.25], [1.0, 0.0], [0.4, 0.4]]]).log()
    blocks, candidates = [[7, 1, 3, 5]], torch.tensor([[[1, 2], [3, 4], [5, 6]]])
    draft = Draft((0,), blocks, candidates, scores, confidence=torch.tensor([[0.8, 0.9, 0.1]]))

    def said(draft):
        (source,) = draft_sources(draft)
        return [dict(claim.chances) for depth in range(3) for claim in source.claims([7], depth)]

    assert said(draft) == [
        pytest.approx(row) for row in ({1: 0.8, 2: 0.1}, {3: 0.9, 4: 0.0}, {5: 0.1, 6: 0.6})
    ]
    trees = [
        auto_proposer([7], 2, sampled=sampled) for sampled in (False, True)
    ]  # whose first node is worth as much
    for auto in trees:
        auto.plan(0, 9)
    greedy, drawn = (auto.assemble(draft, Retained(), 9).values[1] for auto in trees)
    assert greedy > 1.3 * drawn
    cut = replace(draft, blocks=[[7, 1]])  # by a threshold
    assert said(cut) == [pytest.approx({1: 0.8, 2: 0.1})]
    alone = replace(draft, candidates=None, log_probs=None)
    assert said(alone) == [pytest.approx(row) for row in ({1: 0.8}, {3: 0.9}, {5: 0.1})]


@pytest.mark.parametrize("sampled", [False, True])
def test_chances_too_small_for_a_number_are_no_candidates(sampled):
    """A drafter or target may be so sure that the others' chances are rounded to nothing."""
    prices, claims = (
        SourceMixture(sampled=sampled),
        [CandidateSet("baseline", BASELINE, {1: 1.0, 2: 0.0, 3: 1e-300})],
    )
    for claimed in (claims, [CandidateSet("baseline", BASELINE, {3: 1e-300})]):
        for chosen in (1, 2, 3, 4):
            prices.learn(claimed, 0, chosen)
    ((price, token, _),) = prices.of(claims, 0)
    assert token == 1 and 0 < price < 1


class Overflowing(Guesser):
    """Its scores are no numbers in the first rounds."""

    confident = False

    def draft(self, anchor, retained, shifts, cache, top_k=0) -> Draft:
        draft = super().draft(anchor, retained, shifts, cache, top_k)
        if len(cache) > len(PROMPT) + 8:
            return draft
        sure = torch.full(draft.log_probs.shape[:2], math.nan) if self.confident else None
        return replace(draft, log_probs=draft.log_probs * math.nan, confidence=sure)


@pytest.mark.parametrize("confident", [False, True])
def test_a_drafter_that_overflows_leaves_nothing_in_the_prices(confident, monkeypatch):
    monkeypatch.setattr(reanchor.decoder, "calibrate", lambda *_: LatencyModel({1: 1.0, 64: 1.0}, {1: 1e-6}))
    model = tiny_target("qwen3")
    truth = greedy(model, PROMPT, NEW)
    drafter = Overflowing(PROMPT.tolist() + truth)
    drafter.confident = confident
    decoder = SpeculativeDecoder(model, drafter, DecodeConfig("auto"))
    for _ in range(2):
        steps = list(decoder.decode(PROMPT, SamplingConfig(NEW)))
        assert [token for step in steps for token in step.tokens] == truth
    prices = decoder.costs().experience.prices
    assert all(0 < share < 1 for band in prices.shares for share in band.values()) and prices.sharpness >= 1
    assert max(step.accepted for step in steps) > 2
    nothing = reanchor.top_candidates.top_candidates(torch.full((1, 9), math.nan))
    assert set(nothing[0].values()) == {0.0}


def test_an_added_source_is_heard():
    """Its candidates enter the tree under its own name, and the tokens stay the target's."""

    class Phrase:
        def claims(self, path, depth):
            return [CandidateSet("phrase", -5, {truth[len(seen) % len(truth)]: 1.0})] if depth == 0 else ()

    model = tiny_target("qwen3")
    truth = greedy(model, PROMPT, NEW)
    seen: list[int] = []
    decoder = SpeculativeDecoder(model, None, DecodeConfig("auto", max_nodes=4), sources=[Phrase()])
    origins = []
    for round_ in decoder.decode(PROMPT, SamplingConfig(max_new_tokens=NEW)):
        seen += round_.tokens
        origins += round_.tree.origins
    assert seen == truth and -5 in origins
