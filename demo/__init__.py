"""The demo model: how its corpus, tokenizer and weights are made, and how it is measured.

Nothing here is imported by the server or the engine; they only load the folder that comes out.
"""
