"""Holdfast: an OpenAI-compatible server that stores every response, item and stream event in Postgres."""
