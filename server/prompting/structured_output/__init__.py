"""`structured_outputs` of requests: JSON schemas, regexes, choices, EBNF and structural tags as grammars."""
