"""Of a schema that is not strict, what can be enforced is."""

from server.model_formats.grammar.unenforced_keywords import without_unenforced


def test_keywords_that_cannot_be_enforced_are_left_out_at_every_level() -> None:
    schema = {
        "type": "object",
        "properties": {
            "not": {"type": "array", "uniqueItems": True, "items": {"not": {"const": 1}, "type": "integer"}},
            "if": {"anyOf": [{"type": "string", "if": {}, "then": {}, "else": {}}, True]},
        },
        "$defs": {"d": {"propertyNames": {"pattern": "a"}, "additionalProperties": {"not": {}}}},
        "required": ["not"],
        "uniqueItems": True,
    }
    assert without_unenforced(schema) == {
        "type": "object",
        "properties": {
            "not": {"type": "array", "items": {"type": "integer"}},
            "if": {"anyOf": [{"type": "string"}, True]},
        },
        "$defs": {"d": {"additionalProperties": {}}},
        "required": ["not"],
    }


def test_a_value_that_is_no_schema_stays_as_it_is() -> None:
    schema = {"enum": [{"not": 1}], "const": {"uniqueItems": True}, "default": {"if": 1}}
    assert without_unenforced(schema) == schema
    assert without_unenforced(True) is True
