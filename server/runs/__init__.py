"""The life of a response: accepted, run, recorded, repaired."""
