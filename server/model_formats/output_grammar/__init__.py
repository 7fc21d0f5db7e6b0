"""Output grammars: schemas of tools read and relaxed, and their Lark rules, for all model formats."""
