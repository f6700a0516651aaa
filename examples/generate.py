"""Answer one prompt with the embedded pair, and say what the drafter was good for."""

from reanchor import ReAnchorGenerator

generator = ReAnchorGenerator.from_pretrained("demo", "demo")
inputs = generator.tokenizer.apply_chat_template(
    [{"role": "user", "content": "What is 25 times 4?"}],
    add_generation_prompt=True,
    return_tensors="pt",
    return_dict=True,
)
output = generator.generate(**inputs, max_new_tokens=32, return_dict_in_generate=True)
answer = output.sequences[0, inputs["input_ids"].shape[1] :]
print(generator.tokenizer.decode(answer, skip_special_tokens=True))
print(f"{output.stats.tokens} tokens in {len(output.stats.rounds)} rounds, {output.stats.tau:.2f} a round")
