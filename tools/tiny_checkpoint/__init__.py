"""Makes the tiny trained checkpoint: text, tokenizer, training, files."""
