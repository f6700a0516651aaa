"""The diagnostics on a drafter that learned the planted task, and their definitions by hand."""

from __future__ import annotations

import itertools
import json
import operator
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.drafters.load import load_drafter
from reanchor.layer import project
from reanchor.training import diagnostics
from reanchor.training.drafter_shape import DrafterShape
from reanchor.training.initialization import init_drafter
from reanchor.training.observation import CARRIED, acceptance_length, observe
from reanchor.training.packed import block_states
from reanchor_cli.main import main
from tests.training import planted

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
    return [observe(MODEL, drafter, prompt, 24, ()) for prompt, _ in planted.texts(3, 1)]


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
    assert diagnostics.reconvergence([4, 5, 6], [4, 5, 6]) == 3
    assert diagnostics.reconvergence([4, 5, 6], [9, 4, 5]) == 2  # one place late
    assert diagnostics.reconvergence([4, 5, 6], [5, 6, 9]) == 2  # one place early
    assert diagnostics.reconvergence([4, 5, 6], [6, 9, 9]) == 0  # two places off
    assert diagnostics.reconvergence([4, 5, 6], [4]) == 1  # the text ends


def test_recall_by_hand(drafter, seen):
    rows = diagnostics.recall(seen, drafter, drafter)
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


def test_the_ceiling_by_hand(drafter, seen):
    """Against rounds replayed one by one; a branch that always says the truth makes either of them always right."""
    *rows, lengths = diagnostics.ceiling(seen, drafter)
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
    assert all(row["branch"] == row["either"] == 1 for row in diagnostics.ceiling(truthful, drafter)[:-1])


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
    found = diagnostics.attended(drafter, one)[0]  # [S, heads, T]
    (slots, context, angles, _store, _sees, weights), out = calls[0]
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:2]))
    values = project(torch.cat([context, slots]), weights, layer.shape, *angles)[2]  # [T, kv heads, hd]
    values = values.repeat_interleave(found.shape[1] // values.shape[1], 1)
    torch.testing.assert_close(torch.einsum("sht,thd->shd", found, values), out, atol=1e-5, rtol=1e-4)


def test_attention_shares(drafter, seen):
    rows = diagnostics.attention(seen, drafter)
    assert rows[-1]["states"] == "all" and 0 < rows[-1]["mass"] < 1
    assert rows[-1]["rounds"] == sum(row["rounds"] for row in rows[:-1])


def test_what_is_carried(drafter):
    prompts = [prompt for prompt, _ in planted.texts(2, 1)]
    kept = drafter.carryover_embedding.detach().clone()
    drafter.carryover_embedding.data.fill_(2.0)
    try:
        found = [acceptance_length(MODEL, drafter, prompts, 20, (), kind) for kind in CARRIED]
        assert bool((drafter.carryover_embedding == 2.0).all())
        for carryover, tau in ((False, found[0]), (True, found[2])):
            decoder = SpeculativeDecoder(MODEL, drafter, DecodeConfig("dflash", carryover=carryover))
            steps = [list(decoder.decode(prompt, SamplingConfig(20)))[1:] for prompt in prompts]
            assert tau == pytest.approx(
                sum(len(step.tokens) for some in steps for step in some) / sum(map(len, steps))
            )
    finally:
        drafter.carryover_embedding.data = kept
    zero = acceptance_length(MODEL, drafter, prompts, 20, (), "states with embedding")
    assert found[1] == zero  # bare states are states with an embedding of nothing


def test_datasets_and_their_correlation():
    def rounds(r, gain):
        return [{"states": 3, "consecutive": 0, "agreement": 1, "R": r, "gain": gain}] * 2

    table = diagnostics.by_dataset({"a": rounds(1, 0), "b": rounds(2, 1), "c": rounds(3, 2)})
    assert [row["dataset"] for row in table] == ["a", "b", "c", "correlation with gain"]
    assert table[-1]["R"] == pytest.approx(1.0) and table[0]["R"] == 1 and table[2]["gain"] == 2
    assert len(diagnostics.by_dataset({"a": rounds(1, 0)})) == 1


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


@pytest.mark.parametrize("analysis", ["recall", "reconvergence", "attention", "carried"])
def test_the_command(target, folder, tmp_path, analysis):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(
            json.dumps({"id": str(place), "turns": [" ".join(map(str, prompt))]}) + "\n"
            for place, (prompt, _) in enumerate(planted.texts(2, 1))
        )
    )
    arguments = [
        "bench",
        "--analysis",
        analysis,
        "--target",
        target,
        "--drafter",
        folder,
        "--prompts",
        prompts,
    ]
    arguments += ["--raw", "--max-new-tokens", 20, "--plots", tmp_path / "plots", "--json"]
    if analysis != "attention":
        arguments += ["--baseline", folder]
    done = CliRunner().invoke(main, [str(each) for each in arguments])
    assert done.exit_code == 0, done.output
    tables = json.loads(done.stdout)["tables"]
    assert all(rows for rows in tables.values())
    assert {path.stem for path in (tmp_path / "plots").iterdir()} == tables.keys()


def test_a_drafter_that_carries_nothing_is_refused(target, tmp_path):
    init_drafter(tmp_path, None, DrafterShape(4, "0", "0", planted.MASK), MODEL, False)
    done = CliRunner().invoke(
        main, ["bench", "--analysis", "recall", "--target", str(target), "--drafter", str(tmp_path), "--raw"]
    )
    assert done.exit_code == 2 and "reads rejected states" in done.output


def test_nothing_observed_makes_empty_tables(drafter):
    assert diagnostics.recall([], drafter, None) == []
    assert diagnostics.rejected_rounds([], drafter) == []
    assert diagnostics.by_reconvergence([]) == diagnostics.by_dataset({"a": []}) == []
    assert diagnostics.attention([], drafter) == diagnostics.ceiling([], drafter) == []


def test_what_never_varies_correlates_with_nothing():
    rows = [{"states": 3, "consecutive": 0, "agreement": 1, "R": 0, "gain": 0}]
    table = diagnostics.by_dataset(dict.fromkeys("abc", rows))
    assert table[-1]["R"] is None and json.loads(json.dumps(table, allow_nan=False))


@pytest.mark.parametrize(
    "more, reason",
    [
        (["--temperature", "1"], "--temperature"),
        (["--method", "reanchor"], "--method"),
        (["--csv"], "--csv"),
        (["--sweep", "max_nodes=8,16"], "--sweep"),
        (["--output", "results.jsonl"], "--output"),
    ],
)
def test_what_an_analysis_does_not_read_is_refused(more, reason):
    done = CliRunner().invoke(main, ["bench", "--analysis", "recall", *more])
    assert done.exit_code == 2 and f"{reason} has no part in --analysis" in done.output


def test_only_some_analyses_compare_with_a_baseline():
    done = CliRunner().invoke(main, ["bench", "--analysis", "attention", "--baseline", "demo"])
    assert done.exit_code == 2 and "compares with no --baseline" in done.output


def test_prompts_too_long_are_skipped(target, folder, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    turns = [" ".join(["3"] * 300), "1 2 3 4 5 6 7"]
    prompts.write_text("".join(json.dumps({"id": str(n), "turns": [t]}) + "\n" for n, t in enumerate(turns)))
    for analysis in ("recall", "carried"):
        arguments = ["bench", "--analysis", analysis, "--target", target, "--drafter", folder, "--raw"]
        arguments += ["--prompts", prompts, "--max-new-tokens", 12, "--json"]
        done = CliRunner().invoke(main, [str(each) for each in arguments])
        assert done.exit_code == 0, done.output
        assert "skipped for the length of their first turn: 0" in done.stderr.replace("\n", " ")
        assert all(json.loads(done.stdout)["tables"].values())


def test_statistics_over_the_baselines_acceptance_length():
    rows = {
        name: [{"states": 3, "consecutive": 1, "agreement": 2, "R": r, "gain": 9}]
        for name, r in zip("abc", (2, 3, 8), strict=True)
    }
    table = diagnostics.normalised(rows, {"a": (2.0, 2.2), "b": (2.0, 2.3), "c": (4.0, 4.8)})
    assert [row["R"] for row in table[:3]] == [1.0, 1.5, 2.0]
    assert [row["gain"] for row in table[:3]] == pytest.approx([0.1, 0.15, 0.2])
    assert table[2] | {"gain": None} == {
        "dataset": "c",
        "rounds": 1,
        "baseline": 4.0,
        "carryover": 4.8,
        "states": 0.75,
        "consecutive": 0.25,
        "agreement": 0.5,
        "R": 2.0,
        "gain": None,
    }
    assert table[3]["R"] == pytest.approx(1.0) and table[3]["baseline"] is None


def test_what_a_rejected_round_holds(drafter, seen):
    """Against a second reading of the same rounds."""
    rows = diagnostics.rejected_rounds(seen, drafter)
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
