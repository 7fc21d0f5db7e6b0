"""The own engine: its thread, the steps that it computes, supervision and metrics."""
