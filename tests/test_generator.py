"""The drop-in does what `model.generate` does: the same tokens, types, priorities, stops and refusals."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    TextStreamer,
)
from transformers.generation import GenerateDecoderOnlyOutput

from reanchor import DecodeConfig, ReAnchorGenerator, ReAnchorOutput
from tests.graphs.drafters import block_drafter
from tests.tiny import ScriptedDrafter, greedy, tiny_target

PROMPT = torch.tensor([3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9])
NEW = 24


@pytest.fixture(scope="module")
def model():
    return tiny_target("qwen3")


@pytest.fixture(params=["reanchor", "auto"])
def generator(model, request):
    drafter = ScriptedDrafter(PROMPT.tolist() + greedy(model, PROMPT, NEW), "second")
    knobs = {"reanchor": {"verifier_path": "attach"}, "auto": {"max_nodes": 12}}[request.param]
    return ReAnchorGenerator(model, drafter, config=DecodeConfig.of(request.param, **knobs))


def char_tokenizer() -> PreTrainedTokenizerFast:
    """One letter a token: enough of a tokenizer for stop strings and streamers."""
    letters = {chr(ord("0") + k): k for k in range(64)}
    model = Tokenizer(WordLevel(letters, unk_token="0"))
    model.pre_tokenizer = Split(Regex("."), "isolated")
    model.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=model, clean_up_tokenization_spaces=False)


PREFIX_RULES = {
    "repetition penalty": {"repetition_penalty": 1.7},
    "no repeat n-gram": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[7], [14, 15], [9, 2]]},
    "min length": {"min_new_tokens": 12, "eos_token_id": list(range(20))},
    "allowed tokens": {
        "prefix_allowed_tokens_fn": lambda _batch, ids: [(int(ids[-1]) * 3 + k) % 64 for k in range(7)]
    },
    "suppressed": {"suppress_tokens": [1, 2, 3], "begin_suppress_tokens": [5]},
    "forced end": {"forced_eos_token_id": 9},
    "several": {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
        "min_new_tokens": 8,
        "eos_token_id": [4, 8],
    },
    "decay": {"exponential_decay_length_penalty": (5, 1.5), "eos_token_id": 11},
    "sequence bias": {"sequence_bias": {(10,): 4.0, (9, 2): -9.0}},
}


@pytest.mark.parametrize("rule", PREFIX_RULES)
def test_prefix_dependent_processors_equal_hf(model, rule):
    options = {"max_new_tokens": NEW, "do_sample": False, **PREFIX_RULES[rule]}
    expected = model.generate(PROMPT[None], **options)
    plain = greedy(model, PROMPT, NEW)
    for mode, script in (
        ("right", expected[0].tolist()),
        ("second", expected[0].tolist()),
        ("right", PROMPT.tolist() + plain),
    ):
        generator = ReAnchorGenerator(
            model,
            ScriptedDrafter(script, mode),
            config=DecodeConfig.of(method="reanchor", verifier_path="path"),
        )
        assert torch.equal(generator.generate(PROMPT[None], **options), expected)


class Remembering(LogitsProcessor):
    """A processor with a memory: bans whatever it was asked about k calls ago; right only if asked once a token."""

    def __init__(self):
        self.prefixes: list[list[int]] = []

    def __call__(self, input_ids, scores):
        self.prefixes.append(input_ids[0].tolist())
        scores[:, (7 * len(self.prefixes)) % 64] = -float("inf")
        scores[:, (11 * len(self.prefixes)) % 64] += 5
        return scores


def test_a_processor_with_a_memory_sees_every_prefix_once(model, generator):
    ours, theirs = Remembering(), Remembering()
    options = {"max_new_tokens": NEW, "do_sample": False}
    expected = model.generate(PROMPT[None], logits_processor=[theirs], **options)
    assert torch.equal(generator.generate(PROMPT[None], logits_processor=[ours], **options), expected)
    assert ours.prefixes == theirs.prefixes


def test_plain_call_equals_hf_with_its_defaults(model, generator):
    assert torch.equal(generator.generate(PROMPT[None]), model.generate(PROMPT[None]))  # 20 new tokens
    by_name = generator.generate(input_ids=PROMPT[None], attention_mask=torch.ones(1, len(PROMPT)))
    assert torch.equal(by_name, model.generate(input_ids=PROMPT[None]))


@pytest.mark.parametrize("source", ["kwargs", "argument", "model"])
def test_config_sources_have_hfs_priority(model, generator, source):
    kwargs, argument = {}, None
    old = model.generation_config
    try:
        model.generation_config = GenerationConfig(max_new_tokens=9, eos_token_id=None, pad_token_id=0)
        if source != "model":
            argument = GenerationConfig(max_new_tokens=7, eos_token_id=None, pad_token_id=0)
        if source == "kwargs":
            kwargs = {"max_new_tokens": 5}
        ours = generator.generate(PROMPT[None], argument, **kwargs)
        assert torch.equal(ours, model.generate(PROMPT[None], argument, **kwargs))
        assert ours.shape[1] - len(PROMPT) == {"model": 9, "argument": 7, "kwargs": 5}[source]
    finally:
        model.generation_config = old


def test_output_object(model, generator):
    options = {
        "max_new_tokens": NEW,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    ours = generator.generate(PROMPT[None], repetition_penalty=1.2, **options)
    theirs = model.generate(PROMPT[None], repetition_penalty=1.2, **options)
    assert isinstance(ours, ReAnchorOutput) and isinstance(ours, GenerateDecoderOnlyOutput)
    assert torch.equal(ours.sequences, theirs.sequences)
    for name in ("scores", "logits"):
        mine, his = getattr(ours, name), getattr(theirs, name)
        assert len(mine) == len(his) == NEW and mine[0].dtype == his[0].dtype
        torch.testing.assert_close(torch.cat(mine), torch.cat(his))
    cache, reference = ours.past_key_values, theirs.past_key_values
    assert cache.get_seq_length() == reference.get_seq_length() == len(PROMPT) + NEW - 1
    for layer, other in zip(cache.layers, reference.layers, strict=True):
        torch.testing.assert_close(layer.keys[:, :, : cache.length], other.keys)
    assert ours.stats.tokens == NEW and ours["stats"] is ours.stats
    assert ours.attentions is None and ours.hidden_states is None


def test_the_returned_cache_goes_on_in_hf_generate(model, generator):
    ours = generator.generate(PROMPT[None], max_new_tokens=8, return_dict_in_generate=True)
    longer = model.generate(ours.sequences, past_key_values=ours.past_key_values, max_new_tokens=8)
    assert torch.equal(longer, model.generate(PROMPT[None], max_new_tokens=16))


def test_batches_run_row_by_row_with_hfs_padding(model, generator):
    ids = torch.tensor([[0, 0, *PROMPT[:5]], PROMPT[:7].tolist(), [0, 0, 0, 0, 0, 3, 9]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7, [0] * 5 + [1, 1]])
    ends = [greedy(model, PROMPT[:7], NEW)[4], greedy(model, PROMPT[:5], NEW)[9]]
    options = {"attention_mask": mask, "max_new_tokens": NEW, "eos_token_id": ends, "pad_token_id": 0}
    ours = generator.generate(ids, **options)
    assert torch.equal(ours, model.generate(ids, **options))
    stats = generator.generate(ids, return_dict_in_generate=True, **options).stats
    assert stats.tokens == sum(
        generator.generate(
            ids[k : k + 1, 7 - n :], **{**options, "attention_mask": None}, return_dict_in_generate=True
        ).stats.tokens
        for k, n in enumerate((5, 7, 2))
    )


BATCH_RULES = {
    **PREFIX_RULES,
    "allowed tokens": {
        "prefix_allowed_tokens_fn": lambda row, ids: [(int(ids[-1]) * 3 + k + row) % 64 for k in range(7)]
    },
    "prompt's tokens": {"encoder_repetition_penalty": 1.7},
    "prompt's n-grams": {"encoder_no_repeat_ngram_size": 2},
    "max length": {"max_length": 20, "max_new_tokens": None},
    "width": {"stopping_criteria": [lambda ids, _scores, **_: torch.full((len(ids),), ids.shape[1] >= 15)]},
}


@pytest.mark.parametrize("rule", BATCH_RULES)
def test_processors_of_a_padded_batch_equal_hf(model, generator, rule):
    ids = torch.tensor([[0, 0, *PROMPT[:5]], PROMPT[:7].tolist(), [0, 0, 0, 0, 0, 3, 9]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7, [0] * 5 + [1, 1]])
    for rows in (slice(0, 3), slice(0, 1)):
        options = {
            "attention_mask": mask[rows],
            "max_new_tokens": NEW,
            "pad_token_id": 0,
            **BATCH_RULES[rule],
        }
        assert torch.equal(generator.generate(ids[rows], **options), model.generate(ids[rows], **options))


def test_a_padded_row_returns_no_cache_that_hf_would_misread(generator):
    ids, mask = torch.tensor([[0, 0, 3, 9]]), torch.tensor([[0, 0, 1, 1]])
    out = generator.generate(ids, attention_mask=mask, max_new_tokens=4, return_dict_in_generate=True)
    assert out.past_key_values is None


def test_a_far_limit_reserves_nothing(model, generator):
    end = greedy(model, PROMPT, NEW)[6]
    out = generator.generate(PROMPT[None], max_new_tokens=10**13, eos_token_id=end)
    assert out[0, len(PROMPT) :].tolist() == greedy(model, PROMPT, NEW)[:7]


def test_more_tokens_than_are_reserved(model, monkeypatch):
    monkeypatch.setattr("reanchor.sampling._RESERVED", 3)
    options = {"max_new_tokens": 40, "repetition_penalty": 1.3}
    assert torch.equal(
        ReAnchorGenerator(model).generate(PROMPT[None], **options), model.generate(PROMPT[None], **options)
    )


SAMPLING = {
    "plain": {},
    "warped": {"temperature": 0.7, "top_p": 0.9, "top_k": 20},
    "penalty": {"repetition_penalty": 1.3},
}


@pytest.mark.parametrize("rules", SAMPLING)
@pytest.mark.parametrize(
    "config",
    [("plain", "auto"), ("dflash", "exact-match"), ("reanchor", "coupled"), ("auto", "auto")],
    ids=str,
)
def test_a_seed_samples_what_hf_samples_and_leaves_its_generator_where_hf_does(model, rules, config):
    options = {"do_sample": True, "max_new_tokens": 24, "top_k": 0, **SAMPLING[rules]}
    if config[1] == "coupled" and rules == "penalty":
        config = (config[0], "exact-match")  # such a processor lets nobody look ahead
    knobs = DecodeConfig(config[0], sampling_mode=config[1], max_nodes=None if config[0] == "plain" else 9)
    generator = ReAnchorGenerator(model, block_drafter(model), config=knobs)
    torch.manual_seed(11)
    expected, after = [model.generate(PROMPT[None], **options) for _ in range(2)], torch.rand(2)
    torch.manual_seed(11)
    assert [generator.generate(PROMPT[None], **options).tolist() for _ in range(2)] == [
        each.tolist() for each in expected
    ]
    assert torch.equal(torch.rand(2), after)


def test_num_return_sequences(model, generator):
    torch.manual_seed(0)
    many = generator.generate(PROMPT[None], do_sample=True, num_return_sequences=3, max_new_tokens=12)
    assert many.shape == (3, len(PROMPT) + 12) and len({tuple(row.tolist()) for row in many}) == 3


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("place", [0, 1, 2, 3, 6, 11])
def test_stop_strings_cut_inside_a_block(model, generator, place, width):
    tokenizer = char_tokenizer()
    plain = greedy(model, PROMPT, NEW)
    stop = tokenizer.decode(plain[place : place + width])
    options = {"stop_strings": [stop], "tokenizer": tokenizer, "max_new_tokens": NEW}
    ours = generator.generate(PROMPT[None], return_dict_in_generate=True, **options)
    assert torch.equal(ours.sequences, model.generate(PROMPT[None], **options))
    assert ours.stats.tokens == ours.sequences.shape[1] - len(PROMPT) < NEW
    assert ours.past_key_values.get_seq_length() == ours.sequences.shape[1] - 1


class EndsWith(StoppingCriteria):
    def __init__(self, token: int):
        self.token, self.asked = token, []

    def __call__(self, input_ids, scores, **kwargs):
        self.asked.append(input_ids.shape[1])
        return torch.tensor([bool(input_ids[0, -1] == self.token)])


def test_custom_criteria_see_every_prefix(model, generator):
    token = greedy(model, PROMPT, NEW)[10]
    ours, theirs = EndsWith(token), EndsWith(token)
    got = generator.generate(PROMPT[None], stopping_criteria=[ours], max_new_tokens=NEW)
    assert torch.equal(got, model.generate(PROMPT[None], stopping_criteria=[theirs], max_new_tokens=NEW))
    assert ours.asked == theirs.asked


def test_max_time_stops(generator):
    out = generator.generate(PROMPT[None], max_new_tokens=400, max_time=0.0)
    assert out.shape[1] == len(PROMPT) + 1


class Collecting(TextStreamer):
    def __init__(self):
        super().__init__(char_tokenizer(), skip_prompt=True)
        self.text, self.ended = "", 0

    def on_finalized_text(self, text, stream_end=False):
        self.text += text
        self.ended += stream_end


def test_a_streamer_gets_exactly_the_returned_tokens(model, generator):
    end = greedy(model, PROMPT, NEW)[13]
    streamer = Collecting()
    out = generator.generate(PROMPT[None], streamer=streamer, eos_token_id=end, max_new_tokens=NEW)
    assert streamer.text == char_tokenizer().decode(out[0, len(PROMPT) :]) and streamer.ended == 1


def test_an_end_list_on_the_model_is_honoured(model, generator):
    end = greedy(model, PROMPT, NEW)[6]
    model.generation_config.eos_token_id = [end, 63]
    try:
        ours = generator.generate(PROMPT[None], max_new_tokens=NEW)
        assert (
            torch.equal(ours, model.generate(PROMPT[None], max_new_tokens=NEW))
            and ours.shape[1] < len(PROMPT) + NEW
        )
    finally:
        model.generation_config.eos_token_id = None


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"num_beams": 2}, "num_beams=2 is not supported: beam search"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive"),
        ({"dola_layers": "high"}, "dola"),
        ({"guidance_scale": 1.5}, "guidance"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
        ({"assistant_model": object()}, "assistant_model"),
        ({"inputs_embeds": torch.zeros(1, 2, 32)}, "inputs_embeds"),
        ({"past_key_values": object()}, "past_key_values"),
        ({"prompt_lookup_num_tokens": 3}, "prompt"),
        ({"use_cache": False}, "use_cache"),
        ({"max_new_tokns": 3}, "max_new_tokns"),
        ({"stop_strings": ["a"]}, "tokenizer"),
        ({"max_length": len(PROMPT)}, "max_length|max_new_tokens"),
        ({"temperature": -1.0, "do_sample": True}, "temperature"),
        ({"top_p": 1.5, "do_sample": True}, "top_p"),
        ({"top_p": 0.0, "do_sample": True}, "top_p"),
        ({"attention_mask": torch.tensor([[1] * 10 + [0]])}, "left padding"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refusals_say_why(generator, options, reason):
    with pytest.raises(ValueError, match=reason):
        generator.generate(PROMPT[None], **options)


def test_prompts_that_are_no_ids_are_refused(generator):
    with pytest.raises(ValueError, match="whole numbers, got torch.float32"):
        generator.generate(PROMPT[None].float(), max_new_tokens=4)


def test_empty_and_overlong_prompts_are_refused(generator):
    with pytest.raises(ValueError, match="at least one token|empty"):
        generator.generate(torch.zeros(1, 0, dtype=torch.long))
    with pytest.raises(ValueError, match="context"):
        generator.generate(torch.ones(1, 600, dtype=torch.long), max_new_tokens=4)


def test_hf_s_own_generate_decodes_speculatively(model):
    """The door from HF's side: the same tokens, and fewer rounds than tokens."""
    from reanchor import speculative

    drafter = ScriptedDrafter(PROMPT.tolist() + greedy(model, PROMPT, NEW), "second")
    given = {"max_new_tokens": 20, "do_sample": False, "return_dict_in_generate": True}
    heard: list[int] = []
    stream = SimpleNamespace(
        put=lambda ids: heard.extend(ids.flatten().tolist()), end=lambda: heard.append(-1)
    )
    ours = speculative(model, drafter, method="dflash", streamer=stream)
    output = model.generate(PROMPT[None], custom_generate=ours, **given)
    assert output.sequences.tolist() == model.generate(PROMPT[None], **given).sequences.tolist()
    assert 0 < len(output.stats.rounds) < 19 and heard == [*output.sequences[0, len(PROMPT) :].tolist(), -1]
