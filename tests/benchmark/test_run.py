"""A run is interleaved, rotated, gated, and goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import reanchor.benchmark.gate
from reanchor.benchmark.aggregation import cells
from reanchor.benchmark.peers import peer
from reanchor.benchmark.results import open_results, read_results
from reanchor.benchmark.runners import EngineRunner, HuggingFaceRunner
from reanchor.benchmark.skip import Skip
from reanchor.config import DecodeConfig, SamplingConfig
from reanchor.datasets import Prompt, PromptSet
from reanchor_cli.scoreboard import right
from tests.benchmark.scripted import HEADER, METHODS, outcome_of, tiny_bench, tiny_set
from tests.tiny import greedy, tiny_target


@pytest.fixture(scope="module")
def records():
    return list(tiny_bench().run([tiny_set(3)], [0.0]))


def test_every_contestant_gives_the_targets_own_tokens(records):
    model = tiny_target()
    for record, prompt in zip(records, tiny_set(3).prompts, strict=True):
        ids = [ord(letter) % 64 for letter in prompt.turns[0]]
        truth = greedy(model, torch.tensor(ids), 12)
        assert all(record.outcomes(name)[0].tokens == truth for name in METHODS)
        assert record.differences == [] and record.prompt_tokens == [len(ids)]


def test_the_order_rotates_and_the_record_keeps_the_shown_one(records):
    assert [record.order[0] for record in records] == ["hf", "plain", "dflash"]
    assert all(record.methods == list(METHODS) for record in records)
    assert all(sorted(record.order) == sorted(METHODS) for record in records)


def test_passes_and_times_are_those_of_decoding(records):
    for record in records:
        turn = record.turns[0]
        assert turn["hf"].passes == turn["plain"].passes == 11
        assert 0 < turn["reanchor"].passes <= turn["dflash"].passes < 11
        assert turn["ddtree"].passes < 11
        for each in turn.values():
            assert each.decoded == 11 and each.first_seconds > 0 and each.decode_seconds > 0
        assert sum(each.tokens for each in turn["dflash"].rounds) == 11


def test_engines_know_their_full_rounds(records):
    """The oracle is wrong at every fourth position, so a block of three is full where it starts behind one."""
    rounds = [each for record in records for each in record.turns[0]["dflash"].rounds]
    assert {each.full for each in rounds} == {True, False, None}
    assert all(each.full == (each.accepted == 3) for each in rounds if each.full is not None)
    assert not any(each.full is not None for record in records for each in record.turns[0]["plain"].rounds)


def test_warm_up_is_not_counted():
    bench = tiny_bench(methods=("plain", "dflash"))
    done = list(bench.run([tiny_set(1)], [0.0]))
    assert len(done) == 1
    assert [len(each.asked) for each in bench.methods] == [2, 2]  # one of them to warm up
    assert len(done[0].turns[0]["dflash"].tokens) == 12


def test_every_temperature_is_warmed_up_on_a_prompt_that_fits():
    bench = replace(tiny_bench(methods=("plain", "dflash")), context_length=7)
    prompts = tiny_set(3).prompts
    list(bench.run([PromptSet("own", (prompts[2], prompts[0]))], [0.0, 1.0]))
    assert [len(each.asked) for each in bench.methods] == [4, 4]


def test_turns_are_answered_on_the_references_own_answers():
    bench = tiny_bench(methods=("plain", "dflash"))
    (record,) = bench.run([tiny_set(1, turns=2)], [0.0])
    first = bench.conversation.text(record.turns[0]["plain"].tokens)
    second = bench.conversation.encode(["alpha", "alpha!"], [first])
    assert bench.methods[0].asked[-1] == bench.methods[1].asked[-1] == second
    assert record.prompt_tokens == [5, len(second)]
    assert len(record.outcomes("dflash")) == 2


def test_a_models_own_generation_defaults_change_nothing():
    model, prompt = tiny_target(), [3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9]
    truth = greedy(model, torch.tensor(prompt), 20)
    end = max(truth.index(token) for token in truth)  # of the token that comes first the latest
    model.generation_config.repetition_penalty = 1.8
    model.generation_config.eos_token_id = [truth[end], 63]
    assert end > 2 and greedy(model, torch.tensor(prompt), 20) != truth[: end + 1]
    for player in (
        HuggingFaceRunner("hf", model),
        EngineRunner("plain", model, None, DecodeConfig(method="plain")),
    ):
        assert player.decode(prompt, SamplingConfig(20)).tokens == truth[: end + 1]
    assert model.generation_config.repetition_penalty == 1.8


def test_sampling_is_not_gated_and_every_temperature_is_run():
    bench = tiny_bench(methods=("plain", "dflash"))
    done = list(bench.run([tiny_set(2)], [0.0, 1.0]))
    assert [each.key for each in done] == [
        ("own", 0.0, "p0"), ("own", 0.0, "p1"), ("own", 1.0, "p0"), ("own", 1.0, "p1"),
    ]  # fmt: skip
    assert not any(each.differences for each in done)


class Saying:
    """Answers with given letters, as far as the limit goes."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.tokens = name, [ord(letter) - 64 for letter in text]

    def decode(self, ids, sampling):
        return outcome_of([1], tokens=self.tokens[: sampling.max_new_tokens])


def test_an_answer_that_was_cut_is_not_judged_by_its_last_number():
    said = {"right": "it is 7", "wrong": "it is 8", "cut": "first, of 7 and 9", "boxed": "so \\boxed{7} as w"}
    players = [Saying(name, text) for name, text in said.items()]
    ended = Saying("ended", "twelve is 7 ")
    ended.tokens[-1] = 63  # an end at the limit's last place
    bench = tiny_bench(methods=("plain",))
    bench.gate.target.model.generation_config.eos_token_id = 63
    bench = replace(bench, methods=[*players, ended], sampling=SamplingConfig(12, seed=0))
    (record,) = bench.run([PromptSet("own", (Prompt("p", ("alpha",), "7"),))], [1.0])
    assert record.right == {"right": True, "wrong": False, "boxed": True, "ended": True}
    assert record.cut == ["cut"]
    by = {each.method: each for each in cells([record])}
    assert (by["cut"].judged, by["cut"].cut, by["cut"].accuracy) == (0, 1, None)
    assert (right(by["cut"]), right(by["wrong"])) == ("1 cut", "0% of 1")
    (other,) = bench.run([PromptSet("mbpp", (Prompt("p", ("alpha",), "7"),))], [1.0])
    assert other.right == {} and other.cut == []
    assert {right(each) for each in cells([other])} == {"not executed"}
    assert right(replace(by["cut"], dataset="mt_bench", cut=0)) == "no reference"


class Told(EngineRunner):
    """An engine whose oracle is told the prompt, here as an engine's own."""

    def __init__(self, player) -> None:
        self.player, inner = player, getattr(player, "engine", player)
        self.name, self.decoder, self.decode = player.name, inner.decoder, player.decode


class Broken:
    """Gives the right tokens but for one."""

    name = "broken"

    def __init__(self, inner, place: int) -> None:
        self.inner, self.place = inner, place

    def decode(self, ids, sampling):
        outcome = self.inner.decode(ids, sampling)
        if self.place >= len(outcome.tokens):
            return replace(outcome, tokens=outcome.tokens + [1])
        changed = [(t + 1) % 64 if at == self.place else t for at, t in enumerate(outcome.tokens)]
        return replace(outcome, tokens=changed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("place", [0, 5, 12])
def test_the_gate_catches_a_broken_decoder(place, dtype):
    bench = tiny_bench(dtype=dtype, methods=("plain",))
    bench = replace(bench, methods=[*bench.methods, Broken(bench.methods[0], place)])
    records = list(bench.run([tiny_set(2)], [0.0]))
    for record in records:
        (difference,) = record.differences
        assert (difference.method, difference.index, difference.fault) == ("broken", place, True)
        assert difference.gap >= 0
    broken = cells(records)[1]
    assert broken.method == "broken" and broken.faults == 2 and broken.speedup is None


class Swapped(Broken):
    """Takes one token for another that the target's head can't tell from it."""

    def __init__(self, inner, twins: dict[int, int]) -> None:
        self.inner, self.twins = inner, twins

    def decode(self, ids, sampling):
        outcome = self.inner.decode(ids, sampling)
        place = next(at for at, token in enumerate(outcome.tokens) if token in self.twins)
        tokens = list(outcome.tokens)
        tokens[place] = self.twins[tokens[place]]
        return replace(outcome, tokens=tokens)


@pytest.mark.parametrize("dtype, fault", [(torch.bfloat16, False), (torch.float32, True)])
def test_a_tie_is_told_from_a_fault_where_rounding_is_allowed(dtype, fault):
    bench = tiny_bench(dtype=dtype, methods=("plain",))
    chosen = next(bench.run([tiny_set(1)], [0.0])).turns[0]["plain"].tokens[4]
    twin = (chosen + 1) % 64
    with torch.no_grad():
        weight = bench.gate.target.model.get_output_embeddings().weight
        weight[twin] = weight[chosen]
    bench = replace(bench, methods=[*bench.methods, Swapped(bench.methods[0], {chosen: twin, twin: chosen})])
    (difference,) = next(bench.run([tiny_set(1)], [0.0])).differences
    assert difference.gap == difference.loss == 0 and difference.fault == fault
    assert (difference.noise is None) == fault


def test_the_noise_is_that_of_rounding():
    """The same position in passes of several widths: next to nothing in float32, more in bfloat16."""
    noises = []
    for dtype in (torch.float32, torch.bfloat16):
        gate = tiny_bench(dtype=dtype, methods=("plain",)).gate
        prefix = torch.arange(40) % 64
        noises.append(gate.noise(prefix, gate.full_logits(prefix), 4))
    assert noises[0] < 1e-4 < noises[1] < 1


def test_the_first_token_is_the_prefill_s_whose_rounding_counts(monkeypatch):
    gate = tiny_bench(dtype=torch.bfloat16, methods=("plain",)).gate
    prefix = torch.arange(3, 20)
    before, own = gate.noise(prefix, gate.full_logits(prefix), 4), gate.target.prefill
    first = int(gate.full_logits(prefix)[-1].argmax())

    def moved(ids, cache):
        output = own(ids, cache)
        if len(ids) == len(prefix):
            output.logits[-1, first] -= 1.0
        return output

    monkeypatch.setattr(gate.target, "prefill", moved)
    assert before < 0.5 < 0.9 < gate.noise(prefix, gate.full_logits(prefix), 4) < 1.6


def test_noise_is_of_passes_that_begin_where_the_answer_does(monkeypatch):
    """What one position was read by is in the cached row that all later ones read."""
    gate = tiny_bench(dtype=torch.bfloat16, methods=("plain",)).gate
    prefix, verify, prefilled = torch.arange(40) % 64, gate.target.verify, []
    full = gate.full_logits(prefix)
    first, prefill = int(full[-1].argmax()), gate.target.prefill

    def began(ids, cache):
        prefilled.append(len(ids))
        return prefill(ids, cache)

    def drifting(tree, cache):
        output = verify(tree, cache)
        if len(tree) == 1:
            output.logits[:, first] -= 0.1 * (cache.length - prefilled[-1])
        return output

    monkeypatch.setattr(gate.target, "prefill", began)
    monkeypatch.setattr(gate.target, "verify", drifting)
    near, far = gate.noise(prefix, full, 0), gate.noise(prefix, full, 30)
    assert prefilled == [24, 24, 24, 40, 10, 10, 10, 40]
    assert near < 2 < far
    monkeypatch.setattr(reanchor.benchmark.gate, "FARTHEST", 20)
    assert near < gate.noise(prefix, full, 30) < far and prefilled[8:] == [20, 20, 20, 40]


def test_a_prompt_that_does_not_fit_is_skipped_and_the_run_goes_on(tmp_path):
    """alpha, bravo, charlie: the third has seven letters."""
    bench = replace(tiny_bench(methods=("plain",)), context_length=8)
    results = open_results(
        tmp_path / "r.jsonl", {**HEADER, "prompts": {"own": 4 * ["p"]}, "temperatures": [0.0]}
    )
    for each in bench.run([tiny_set(3)], [0.0]):
        results.append(each)
    assert [each.id for each in bench.unfit([tiny_set(3)])] == ["p2"]
    assert [each.id for each in results.records] == ["p0", "p1"]
    assert results.skips == [Skip("own", "p2", 0.0, "turn 1 has 7 tokens and the target's context 8")]
    assert results.state == "3 of 4 prompts, 1 skipped"
    again = read_results(results.path)
    assert (again.records, again.skips) == (results.records, results.skips)
    assert not list(bench.run([tiny_set(3)], [0.0], again.done))
    assert replace(bench, context_length=9).limited(bench.sampling, [1] * 5).max_new_tokens == 4


def test_a_later_turn_that_does_not_fit_is_skipped():
    bench = replace(tiny_bench(methods=("plain",)), context_length=20)
    (skip,) = bench.run([tiny_set(1, turns=2)], [0.0])
    assert bench.unfit([tiny_set(1, turns=2)]) == [] and skip.skipped.startswith("turn 2 has")


def test_no_prompt_that_fits_is_a_mistake():
    bench = replace(tiny_bench(methods=("plain",)), context_length=6)
    with pytest.raises(ValueError, match="'p0' has 5 tokens and the target's context 6; give shorter"):
        bench.unfit([tiny_set(1)])


def test_an_interrupted_run_goes_on_in_the_same_file(tmp_path):
    path, header = tmp_path / "run.jsonl", {**HEADER, "methods": ["plain", "dflash"], "started": "1"}
    bench, sets = tiny_bench(methods=("plain", "dflash")), [tiny_set(4)]
    results = open_results(path, header)
    for record in bench.run(sets, [0.0], results.done):
        results.append(record)
        if len(results.records) == 2:
            break  # killed here
    before = path.read_bytes()
    path.write_bytes(before + b'{"dataset": "own", "id": "p2", "tem')  # and in the middle of a line
    again = open_results(path, {**header, "started": "2"})
    assert [each.id for each in again.records] == ["p0", "p1"] and path.read_bytes() == before
    for record in bench.run(sets, [0.0], again.done):
        again.append(record)
    assert path.read_bytes().startswith(before)
    final = open_results(path, header)
    assert [each.id for each in final.records] == ["p0", "p1", "p2", "p3"]
    assert final.records == again.records
    assert not list(bench.run(sets, [0.0], final.done))


def test_the_order_after_resuming_is_the_order_without_a_break():
    bench = tiny_bench(methods=("plain", "dflash"))
    (resumed,) = bench.run([tiny_set(2)], [0.0], {("own", 0.0, "p0")})
    assert resumed.order == ["dflash", "plain"]


def test_a_record_says_what_auto_began_with(tmp_path):
    """In the first of every start, greedy and sampled: the second start knows nothing of what the first learnt."""
    bench = tiny_bench(methods=("plain", "auto", "ddtree"))
    bench = replace(bench, methods=[Told(each) for each in bench.methods])
    header = {**HEADER, "methods": ["plain", "auto", "ddtree"]}
    results = open_results(tmp_path / "run.jsonl", header)
    for each in bench.run([tiny_set(2)], [0.0, 1.0]):
        results.append(each)
    assert [list(each.costs) for each in results.records] == [["auto"], [], ["auto"], []]
    assert not any(each.resumed for each in results.records)
    costs = read_results(results.path).records[0].costs["auto"]
    assert costs == results.records[0].costs["auto"]
    assert costs["verify"]["1"] > 0 and costs["draft"]["1"] > 0 and costs["context"] > 0
    later = list(bench.run([tiny_set(3)], [0.0, 1.0], results.done))
    assert [(each.id, each.resumed, list(each.costs)) for each in later] == [
        ("p2", True, ["auto"]), ("p2", False, ["auto"]),
    ]  # fmt: skip


def test_outcomes_survive_the_file(tmp_path):
    header = {**HEADER, "methods": ["hf", "reanchor"]}
    results = open_results(tmp_path / "run.jsonl", header)
    bench = tiny_bench(methods=("hf", "reanchor"))
    (record,) = bench.run([tiny_set(1)], [0.0])
    results.append(record)
    assert open_results(results.path, header).records == [record]
    assert outcome_of([2, 3]).decoded == 5


def test_tokens_of_prompt_lookup_s_first_pass_are_the_prefill_s():
    model = tiny_target("qwen3")
    outcome = peer("prompt-lookup", model, None).decode([0] * 12, SamplingConfig(max_new_tokens=12))
    assert outcome.tokens == [0] * 12 == greedy(model, torch.tensor([0] * 12), 12)
    assert (outcome.prefilled, outcome.passes, outcome.decoded) == (11, 1, 1)
    assert HuggingFaceRunner("hf", model).decode([0] * 12, SamplingConfig(max_new_tokens=12)).decoded == 11
