"""FAMILIES: what each family's tokens are, and in what words its models call: from the documented formats."""

from tests.support.family_formats import json_arguments, literal_arguments, xml_elements
from tests.support.family_formats.family import Family

__all__ = ["FAMILIES", "Family"]

WITHOUT_CALLS = (
    Family(
        "gemma2",
        special="<bos> <eos> <start_of_turn> <end_of_turn>",
        eos="<end_of_turn>",
    ),
)
FAMILIES = {
    family.name: family
    for family in (
        *json_arguments.FAMILIES,
        *literal_arguments.FAMILIES,
        *xml_elements.FAMILIES,
        *WITHOUT_CALLS,
    )
}
