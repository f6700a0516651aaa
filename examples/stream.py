"""Stream with the streamer that transformers provides: it gets exactly the tokens that are committed."""

from transformers import TextStreamer

from reanchor import ReAnchorGenerator

generator = ReAnchorGenerator.from_pretrained("demo", "demo")
inputs = generator.tokenizer.apply_chat_template(
    [{"role": "user", "content": "Name three rivers and where they flow."}],
    add_generation_prompt=True,
    return_tensors="pt",
    return_dict=True,
)
streamer = TextStreamer(generator.tokenizer, skip_prompt=True, skip_special_tokens=True)
generator.generate(**inputs, max_new_tokens=40, streamer=streamer)
