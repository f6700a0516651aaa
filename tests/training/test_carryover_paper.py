"""benchmarks/paper/carryover.py on a drafter of the planted target, and its definitions by hand."""

from __future__ import annotations

import importlib.util
import itertools
import json
import operator
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.drafters.load import load_drafter
from reanchor.layer import project
from reanchor.training.drafter_shape import DrafterShape
from reanchor.training.initialization import init_drafter
from reanchor.training.packed import block_states
from tests.training import planted

FILE = Path(__file__).parents[2] / "benchmarks" / "paper" / "carryover.py"
SPEC = importlib.util.spec_from_file_location("carryover_paper", FILE)
assert SPEC is not None and SPEC.loader is not None
paper = sys.modules["carryover_paper"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(paper)
MODEL = planted.planted_target()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Untrained, but not at random: copies of the target's layer, with an embedding of carried rows."""
    place = tmp_path_factory.mktemp("drafter")
    init_drafter(place, None, DrafterShape(4, "0", "0", planted.MASK), MODEL, True)
    return place


@pytest.fixture(scope="module")
def drafter(folder):
    return load_drafter(folder, MODEL)


@pytest.fixture(scope="module")
def seen(drafter):
    return [paper.observe(MODEL, drafter, prompt, 24) for prompt, _ in planted.texts(3, 1)]


def test_watching_changes_nothing(drafter, seen):
    prompt = planted.texts(1, 1)[0][0]
    decoder = SpeculativeDecoder(MODEL, drafter, DecodeConfig("dflash", carryover=True))
    steps = list(decoder.decode(prompt, SamplingConfig(24)))
    text = prompt + [token for step in steps for token in step.tokens]
    assert seen[0].ids.tolist() == text
    lengths = [sum(len(step.tokens) for step in steps[:place]) for place in range(1, len(steps))]
    positions = [each.position for each in seen[0].rounds]
    # a round in which only the bonus is still allowed drafts nothing
    assert positions == [len(prompt) + length - 1 for length in lengths][: len(positions)]
    assert len(lengths) - len(positions) <= 1


def test_reconvergence_by_hand():
    assert paper.reconverged([4, 5, 6], [4, 5, 6]) == 3
    assert paper.reconverged([4, 5, 6], [9, 4, 5]) == 2  # one place late
    assert paper.reconverged([4, 5, 6], [5, 6, 9]) == 2  # one place early
    assert paper.reconverged([4, 5, 6], [6, 9, 9]) == 0  # two places off
    assert paper.reconverged([4, 5, 6], [4]) == 1  # the text ends


def test_recall_by_hand(drafter, seen):
    rows = paper.recall(seen, drafter, drafter)
    first = [row for row in rows if row["position"] == 0]
    assert {row["variant"] for row in first} == {"on", "off", "baseline"}
    assert len({row["rounds"] for row in first}) == 1
    assert first[0]["rounds"] == sum(len(each.anchors) for each in seen)
    by_name = {row["variant"]: row for row in first}
    assert by_name["off"]["recall_1"] == by_name["baseline"]["recall_1"]
    right = 0
    for each in seen:
        hidden = block_states(drafter, each.ids, each.features, each.anchors, each.carried)
        right += int((drafter.score(hidden)[:, 0].argmax(-1) == each.ids[each.anchors + 1]).sum())
    assert by_name["on"]["recall_1"] == pytest.approx(right / by_name["on"]["rounds"])
    assert all(row["recall_1"] <= row["recall_16"] <= 1 for row in rows)


def test_the_bound_by_hand(drafter, seen):
    """Against rounds replayed one by one; a branch that always says the truth makes either of them always right."""
    *rows, lengths = paper.bound(seen, drafter)
    rejected = [
        (each, block)
        for each in seen
        for block, place in enumerate(each.whole)
        if each.rounds[place].retained
    ]
    assert rows[0]["position"] == 0 and rows[0]["rounds"] == lengths["rounds"] == len(rejected)
    said = [
        each.rounds[each.whole[block]].retained.tokens[0] == int(each.ids[each.anchors[block] + 1])
        for each, block in rejected
    ]
    assert rows[0]["branch"] == pytest.approx(sum(said) / len(said))
    assert all(
        max(row["drafter"], row["branch"]) <= row["either"] <= row["drafter"] + row["branch"] for row in rows
    )
    chances = itertools.accumulate((row["drafter"] for row in rows), operator.mul)
    assert lengths["drafter"] == pytest.approx(1 + sum(chances))
    assert lengths["drafter"] <= lengths["either"]
    truthful = [
        replace(
            each,
            rounds=[
                replace(one, retained=replace(one.retained, tokens=text_after(each, one)))
                for one in each.rounds
            ],
        )
        for each in seen
    ]
    assert all(row["branch"] == row["either"] == 1 for row in paper.bound(truthful, drafter)[:-1])


def text_after(each, one):
    return each.ids[one.position + 1 :].tolist() if one.retained else one.retained.tokens


def test_the_packed_replay_drafts_what_the_decode_drafted(drafter, seen):
    for each in seen:
        hidden = block_states(drafter, each.ids, each.features, each.anchors, each.carried)
        tokens = drafter.propose(hidden, each.ids[each.anchors]).tokens.tolist()
        assert tokens == [list(each.rounds[place].block[1:]) for place in each.whole]


def test_attention_weights_are_those_of_the_pass(drafter, seen, monkeypatch):
    """Weights times values give what the layer's attention gives."""
    one, layer, calls = seen[0], drafter.body.layers[0], []
    attend = layer.attend

    def watched(*given):
        calls.append((given, attend(*given)))
        return calls[-1][1]

    monkeypatch.setattr(layer, "attend", watched)
    with torch.no_grad(), paper.attention_weights() as weights_of:
        block_states(drafter, one.ids, one.features, one.anchors, one.carried)
    found = weights_of[0]  # [S, heads, T]
    (slots, context, angles, _store, _sees, weights), out = calls[0]
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:2]))
    values = project(torch.cat([context, slots]), weights, layer.shape, *angles)[2]  # [T, kv heads, hd]
    values = values.repeat_interleave(found.shape[1] // values.shape[1], 1)
    torch.testing.assert_close(torch.einsum("sht,thd->shd", found, values), out, atol=1e-5, rtol=1e-4)


def test_attention_shares(drafter, seen):
    rows = paper.attention(seen, drafter)
    assert rows[-1]["states"] == "all" and 0 < rows[-1]["mass"] < 1
    assert rows[-1]["rounds"] == sum(row["rounds"] for row in rows[:-1])


def test_what_is_carried(drafter):
    prompts = [prompt for prompt, _ in planted.texts(2, 1)]
    kept = drafter.carryover_embedding.detach().clone()
    drafter.carryover_embedding.data.fill_(2.0)
    try:
        found = [paper.acceptance_length(MODEL, drafter, prompts, 20, kind) for kind in paper.CARRIED]
        assert bool((drafter.carryover_embedding == 2.0).all())
        for carryover, tau in ((False, found[0]), (True, found[2])):
            decoder = SpeculativeDecoder(MODEL, drafter, DecodeConfig("dflash", carryover=carryover))
            steps = [list(decoder.decode(prompt, SamplingConfig(20)))[1:] for prompt in prompts]
            assert tau == pytest.approx(
                sum(len(step.tokens) for some in steps for step in some) / sum(map(len, steps))
            )
    finally:
        drafter.carryover_embedding.data = kept
    zero = paper.acceptance_length(MODEL, drafter, prompts, 20, "states with embedding")
    assert found[1] == zero  # bare states are states with an embedding of nothing


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("target")
    MODEL.save_pretrained(place)
    words = Tokenizer(models.WordLevel({str(number): number for number in range(planted.V)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(place)
    return place


def written(folder, *turns):
    path = folder / "prompts.jsonl"
    path.write_text(
        "".join(json.dumps({"id": str(n), "turns": [turn]}) + "\n" for n, turn in enumerate(turns))
    )
    return path


def run(diagnostic, target, drafter, prompts, *more):
    given = [
        diagnostic,
        "--target",
        target,
        "--drafter",
        drafter,
        "--prompts",
        prompts,
        "--raw",
        "--json",
        *more,
    ]
    return CliRunner().invoke(paper.main, [str(each) for each in given])


def texts():
    return [" ".join(map(str, prompt)) for prompt, _ in planted.texts(2, 1)]


@pytest.mark.parametrize("diagnostic", ["recall", "reconvergence", "attention", "carried"])
def test_the_script(target, folder, tmp_path, diagnostic):
    compared = ["--baseline", folder] if diagnostic in ("recall", "carried") else []
    done = run(diagnostic, target, folder, written(tmp_path, *texts()), "--max-new-tokens", 20, *compared)
    assert done.exit_code == 0, done.output
    tables = json.loads(done.stdout)["tables"]
    assert tables and all(tables.values())


def test_it_runs_as_a_file(target, folder, tmp_path):
    given = [FILE, "attention", "--target", target, "--drafter", folder, "--raw", "--max-new-tokens", "20"]
    given += ["--prompts", written(tmp_path, *texts())]
    done = subprocess.run([sys.executable, *map(str, given)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "layer_0" in done.stdout and "all" in done.stdout


def test_a_drafter_that_carries_nothing_is_refused(target, tmp_path):
    init_drafter(tmp_path, None, DrafterShape(4, "0", "0", planted.MASK), MODEL, False)
    done = run("recall", target, tmp_path, written(tmp_path, *texts()))
    assert done.exit_code == 2 and "reads no rejected states" in done.output


def test_only_some_diagnostics_compare_with_a_baseline(target, folder, tmp_path):
    done = run("attention", target, folder, written(tmp_path, *texts()), "--baseline", folder)
    assert done.exit_code == 2 and "compares with no --baseline" in done.output


def test_nothing_observed_makes_empty_tables(drafter):
    assert paper.recall([], drafter, None) == []
    assert paper.rejected_rounds([], drafter) == []
    assert paper.means([], "R") == []
    assert paper.attention([], drafter) == paper.bound([], drafter) == []


def test_prompts_too_long_are_left_out(target, folder, tmp_path):
    prompts = written(tmp_path, " ".join(["3"] * 300), "1 2 3 4 5 6 7")
    done = run("carried", target, folder, prompts, "--max-new-tokens", 12)
    assert done.exit_code == 0, done.output
    assert "1 prompts are too long" in done.stderr
    assert [row["prompts"] for row in json.loads(done.stdout)["tables"]["carried"]] == [1]


def test_what_a_rejected_round_holds(drafter, seen):
    """Against a second reading of the same rounds."""
    rows = paper.rejected_rounds(seen, drafter)
    found = []
    for each in seen:
        for before, now in zip(each.rounds, each.rounds[1:], strict=False):
            if now.retained and now.position + drafter.proposals < len(each.ids):
                first = now.position - before.position  # the draft that was rejected
                later = list(before.block[first + 1 :])
                right = [x == y for x, y in zip(later, now.retained.tokens, strict=False)]
                run = len(list(itertools.takewhile(bool, right)))
                found.append((len(now.retained.tokens), run, sum(right)))
    assert found and [(row["states"], row["consecutive"], row["agreement"]) for row in rows] == found
