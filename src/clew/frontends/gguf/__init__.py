"""GGUF files, the models of llama.cpp: settings, a tokenizer, and weights in blocks of few bits.

The file has weights but no graph. `container.py` reads its table, `blocks.py` the types of its
tensors, and `settings.py` turns its metadata into the configuration from which the folders of
`transformers` are built, too. `vocabulary.py` reads the tokenizer, and `tokenizer.py` turns it into
a file of the library `tokenizers`.
"""
