"""Measurements, as ratios against a rival in the same run."""
