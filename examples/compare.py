"""One prompt, three methods, the same tokens: only the number of target passes differs."""

from reanchor import DecodeConfig, ReAnchorGenerator
from reanchor.loading import load_pair

pair = load_pair("demo", "demo")
inputs = pair.tokenizer.apply_chat_template(
    [{"role": "user", "content": "A box has 12 eggs. How many eggs are in 3 boxes?"}],
    add_generation_prompt=True,
    return_tensors="pt",
    return_dict=True,
)
plain = None
for method in ("plain", "dflash", "reanchor"):
    generator = ReAnchorGenerator(pair.target, pair.drafter, config=DecodeConfig(method=method))
    output = generator.generate(**inputs, max_new_tokens=32, return_dict_in_generate=True)
    tokens = output.sequences[0].tolist()
    plain = plain or tokens
    same = "same tokens" if tokens == plain else "other tokens"
    print(f"{method:9} {len(output.stats.rounds):3} rounds, {output.stats.tau:.2f} tokens a round, {same}")
