"""A drafter of your own is three methods. This one copies from a text that the answer is likely to repeat."""

from reanchor import Drafter, ReAnchorGenerator
from reanchor.core import Draft
from reanchor.loading import load_target


class Copying(Drafter):
    tap_layers = ()  # it reads no hidden states of the target
    block_size, proposals = 9, 8

    def __init__(self, source):
        self.source = source

    def new_cache(self):
        return []

    def commit(self, features, cache):
        cache.extend(features)  # its length is the number of committed positions

    def draft(self, anchor, retained, shifts, cache, top_k=0):
        anchors = [anchor, *(retained.tokens[shift - 1] for shift in shifts)]
        return Draft((0, *shifts), [self.after(token) for token in anchors])

    def after(self, token):
        at = self.source.index(token) if token in self.source else len(self.source)
        return [token, *self.source[at + 1 : at + 1 + self.proposals]]


target, tokenizer = load_target("demo")
text = "The quick brown fox jumps over the lazy dog near the old mill."
inputs = tokenizer(f"{text}\n{text}\nThe quick", return_tensors="pt")
generator = ReAnchorGenerator(target, Copying(tokenizer(text).input_ids))
output = generator.generate(**inputs, max_new_tokens=14, return_dict_in_generate=True)
print(tokenizer.decode(output.sequences[0, inputs["input_ids"].shape[1] :]))
print(f"{output.stats.tau:.2f} tokens a round")
