"""Text generation with language models: prompts to tokens, tokens to text.

`generating.py` is `clew.generate`, and `language_model.py` joins a compiled model with the
tokenizer and the settings of its folder.
"""
