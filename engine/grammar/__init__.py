"""Structured output: grammars bounded, compiled and cached."""
