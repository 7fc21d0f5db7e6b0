"""Engines in other processes, spoken to over HTTP: vLLM and llama.cpp's server behind `request.Engine`."""
