"""Lark grammars that hold a model to tools, schemas and formats."""
