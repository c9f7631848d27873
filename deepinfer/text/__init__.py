"""Words in and words out: tokenizer, chat format, streaming text.

In: texts and messages. Out: token ids, and text again. Does not know: tensors, the engine.
"""
