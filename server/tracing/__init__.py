"""Traces: spans of requests, responses, turns and tool calls, given to an OpenTelemetry collector."""
