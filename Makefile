# Everything runs from a clone with Python 3.11 and make; uv is used when it is there.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.run
STAMP := $(VENV)/.ready
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Every start of a program would compile it anew else.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help:  ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

# uv installs faster than pip. Only the user's: one in $(VENV) would not ask the package index that pip is set up for.
UV := $(filter-out $(CURDIR)/%,$(shell command -v uv))

# What running needs, and with it everything that developing needs: the versions of uv.lock, held to their hashes. Our own
# two packages are built with what is installed by then, without the network.
$(RUN) $(STAMP): pyproject.toml clients/pyproject.toml requirements/run.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Bedrock needs Python 3.11 or newer (set PYTHON=…)"; exit 1; }
	@echo "Setting up $(VENV), which takes a minute or two the first time…" >&2
	@test -x $(BIN)/python || $(if $(UV),$(UV) venv --quiet --python $(PYTHON) $(VENV),$(PYTHON) -m venv $(VENV)) || \
	  { rm -rf $(VENV); echo "venv is missing; on Debian: apt-get install python3-venv"; exit 1; }
	@$(if $(UV),,$(BIN)/python -c 'import pip' 2>/dev/null || $(BIN)/python -m ensurepip >/dev/null) # one that uv has made has no pip
	@$(INSTALL) $(LOCKED) requirements/run.txt
	@$(INSTALL_MORE)
	@$(INSTALL) --no-deps --no-build-isolation -e ./clients -e .
	@echo "Done. The program is $(BIN)/bedrock; \`. $(BIN)/activate\` puts it on your PATH." >&2
	@touch $(RUN) $@

INSTALL = $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/python -m pip install --disable-pip-version-check) --quiet
# These files name all that is needed, so nothing is resolved: pip would meet releases newer than the lock, and refuse them.
LOCKED = --no-deps --require-hashes -r
# pip compiles all that it installs, half a minute of it linters and their like: that is left to what imports a module.
# But for what running needs: a sandbox would compile it in each start, as it can't write what it has compiled.
$(STAMP): INSTALL_MORE = $(INSTALL) $(if $(UV),,--no-compile) $(LOCKED) requirements/dev.txt

.PHONY: setup
setup: $(STAMP)  ## Create the environment in .venv, with everything that developing needs

.PHONY: run
run: $(RUN)  ## Start a server, print the console's address and chat in the terminal (ARGS=-c to go on); without a terminal, play a demo conversation
	@BEDROCK_HTTP_LISTEN=$${BEDROCK_HTTP_LISTEN-127.0.0.1:0} $(BIN)/bedrock chat --spawn --again 'make run ARGS="-r {}"' $(ARGS)

.PHONY: local-llm
local-llm: $(RUN)  ## Chat with a small model that runs on this machine, without a key (130 MB; GGUF=… for another one)
	@PYTHONPATH=. $(BIN)/python -m tests.peers.install llama
	@PYTHONPATH=. $(BIN)/python -m tests.peers.local_llm $(if $(GGUF),--gguf $(GGUF)) $(ARGS)

# A minute of three nodes that are killed, frozen and cut off.
CLUSTER_ROUND = tests/soak/test_cluster.py

# A third of a test's time is spent waiting (for processes, limits, a slow provider): three fill two cores.
TEST_WORKERS = -n 3 --dist loadscope --no-loadscope-reorder

.PHONY: test
test: $(STAMP)  ## Set up and run the whole suite, but for a round of `make cluster`, which cluster-e2e has
	$(BIN)/python -m pytest $(TEST_WORKERS) --ignore $(CLUSTER_ROUND) $(ARGS)

.PHONY: test-pythons
test-pythons: $(STAMP)  ## Test with every other Python from 3.11 to 3.14 that is found (ONE=1 for one, TESTS="tests/unit/core" for some)
	@PYTHONPATH=. $(BIN)/python -m tests.pythons $(if $(ONE),--one) $(TESTS)

.PHONY: coverage
coverage: $(STAMP)  ## Measure the lines and branches that unit and integration tests run; less than the floor in pyproject.toml fails
	@mkdir -p reports/coverage
	$(BIN)/python -m pytest -q $(TEST_WORKERS) --cov --cov-report=term tests/unit tests/integration $(ARGS)

.PHONY: test-peers
test-peers: $(STAMP)  ## Test with programs by others (aimock, llama.cpp with a real model, MCP servers, Node, Envoy) and the client's wheel; installs into .peers
	@PYTHONPATH=. $(BIN)/python -m tests.peers.install node llama client installers mcp promtool envoy browser base-image
	BEDROCK_PEERS=1 $(BIN)/python -m pytest -n 2 --dist loadscope tests/peers $(ARGS)

.PHONY: format
format: $(STAMP)  ## Format the code, and mend what the linter can mend itself
	ruff check --fix-only --quiet .
	ruff format .

# The two type checkers take the longest, on a core each.
.PHONY: check check-mypy check-pyright check-rest
check: $(STAMP)  ## Lint, spelling, types, import contracts, contract lint, drift of generated code and of pinned versions
	@$(MAKE) --no-print-directory -j2 -Otarget check-mypy check-pyright check-rest

check-mypy: $(STAMP)
	mypy

check-pyright: $(STAMP)
	pyright

check-rest: $(STAMP)
	ruff check .
	ruff format --check .
	codespell
	lint-imports
	cd protos && buf lint && buf format --exit-code --diff && buf breaking --against released.binpb
	@$(MAKE) --no-print-directory protos-drift
	@PYTHONPATH=.:clients python -m tests.generate.client_sync --check
	@$(MAKE) --no-print-directory lock-drift
	@PYTHONPATH=. python -m tests.size --check

.PHONY: size
size: $(STAMP)  ## Count the code of every folder beside its budget in tests/size.json (ARGS=--lower to lower it to what is there)
	@PYTHONPATH=. $(BIN)/python -m tests.size $(ARGS)

# The public index, whichever one this machine installs from. What agrees with uv.lock is checked without the network.
UV_LOCK = $(BIN)/uv lock --quiet --default-index https://pypi.org/simple
UV_EXPORT = $(BIN)/uv export --quiet --frozen --offline --no-header --no-emit-workspace --format requirements.txt
EXPORT_RUN = $(UV_EXPORT) --no-dev --group build --extra http
EXPORT_SBOM = $(BIN)/uv export --quiet --frozen --offline --no-dev --preview-features sbom-export --format cyclonedx1.5 | PYTHONPATH=. $(BIN)/python -m tests.generate.sbom
EXPORT_DEV = $(UV_EXPORT) --group dev

.PHONY: lock
lock: $(STAMP)  ## Write uv.lock and requirements/ from both pyproject.toml (ARGS=--upgrade for the newest versions)
	$(UV_LOCK) $(ARGS)
	$(EXPORT_RUN) > requirements/run.txt
	$(EXPORT_DEV) > requirements/dev.txt
	$(EXPORT_SBOM) > requirements/sbom.cdx.json

.PHONY: lock-drift
lock-drift: $(STAMP)
	@$(UV_LOCK) --check --offline || { echo "uv.lock does not agree with pyproject.toml: run \`make lock\`"; exit 1; }
	@diff requirements/run.txt <($(EXPORT_RUN)) && diff requirements/dev.txt <($(EXPORT_DEV)) && \
	  diff requirements/sbom.cdx.json <($(EXPORT_SBOM)) || \
	  { echo "requirements/ does not agree with uv.lock: run \`make lock\`"; exit 1; }

.PHONY: client-sync
client-sync: $(STAMP)  ## Write the blocking client, clients/bedrock/_sync, from the one for asyncio
	PYTHONPATH=.:clients $(BIN)/python -m tests.generate.client_sync

.PHONY: core-readme
core-readme: $(STAMP)  ## Write the machine's matrix and diagram from the code into actors/core/README.md
	PYTHONPATH=.:clients $(BIN)/python -m tests.generate.core_readme
	PYTHONPATH=.:clients $(BIN)/python -m tests.generate.console_machine

.PHONY: message-ways
message-ways: $(STAMP)  ## Draw the ways of a message and a cancel in docs/architecture.md, from a server that goes them
	PYTHONPATH=.:clients $(BIN)/python -m tests.generate.message_ways

.PHONY: security-table
security-table: $(STAMP)  ## Write the table of attacks in docs/security.md from the last `make fault PARTS=sandbox`
	PYTHONPATH=.:clients $(BIN)/python -m tests.generate.security_table

.PHONY: api-docs
api-docs: $(STAMP)  ## Write docs/api/reference.md, and the OpenAPI description of the API over HTTP, from protos/
	PYTHONPATH=.:clients $(BIN)/python -m tests.generate.api_docs
	PYTHONPATH=.:clients $(BIN)/python -m tests.generate.openapi

.PHONY: model-prices
model-prices: $(STAMP)  ## Write the prices and windows of genai-prices into models.toml, and print what changes
	@PYTHONPATH=. $(BIN)/python -m tests.generate.model_prices

.PHONY: readme-session
readme-session: $(STAMP)  ## Draw docs/session.svg, which README.md shows, from a chat at a terminal
	@PYTHONPATH=.:clients $(BIN)/python -m tests.generate.readme_session

.PHONY: console-picture
console-picture: $(STAMP)  ## Draw docs/console.png, which README.md shows, from the running program in Chromium
	@PYTHONPATH=. $(BIN)/python -m tests.peers.install browser
	@PYTHONPATH=.:clients $(BIN)/python -m tests.peers.console_pictures

# Notes in reports/fault.json what a part has done.
RECORD = @PYTHONPATH=.:clients $(BIN)/python -m tests.fault.record

FAULTS := machine sandbox kill races watch agents mcp client-tools principals aborts providers http suite
EXAMPLES ?= 100000
TREES ?= 1000
KILLS ?= 500
RACES ?= 100000
PATCHES ?= 10000
RESUMES ?= 10000
COMMIT_RACES ?= 1000
CANCELS ?= 2000
FAMILIES ?= 100
MCP_CANCELS ?= 1000
CLIENT_CANCELS ?= 1000
FUZZED_CALLS ?= 20000
ABORTS ?= 2000
PROVIDER_SECONDS ?= 20
HTTP_CALLS ?= 10000
HTTP_CUTS ?= 1000
LEASE_STATES ?= 1000000
SUITE_KILLS ?= 10

.PHONY: fault $(FAULTS:%=fault-%)
fault: $(addprefix fault-,$(or $(PARTS),$(FAULTS)))  ## Search long for what breaks a promise (PARTS="machine kill" for some; EXAMPLES, TREES, KILLS, RACES, PATCHES, RESUMES, CANCELS, FAMILIES, MCP_CANCELS, CLIENT_CANCELS, FUZZED_CALLS, ABORTS, PROVIDER_SECONDS, HTTP_CALLS, HTTP_CUTS, SUITE_KILLS)

# The machine's laws, over EXAMPLES lives.
fault-machine: $(STAMP)
	BEDROCK_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -n 2 --timeout 0 tests/property
	$(RECORD) machine EXAMPLES=$(EXAMPLES)

# Every attack on every tier of the sandbox, as root and as somebody else: a table.
fault-sandbox: $(STAMP)
	PYTHONPATH=.:clients $(BIN)/python -m tests.fault
	$(RECORD) sandbox

# TREES of processes killed, and KILLS servers with tools at work: nothing survives, after a server for 250 ms at most.
fault-kill: $(STAMP)
	BEDROCK_TREES=$(TREES) BEDROCK_KILLS=$(KILLS) BEDROCK_KILL_MS=250 \
	  $(BIN)/python -m pytest --timeout 0 tests/integration/sandbox/test_kill_many.py tests/e2e/test_server_killed.py
	$(RECORD) kill TREES=$(TREES) KILLS=$(KILLS)

# RACES attempts of patch while another program exchanges its directories for links, and in each mode PATCHES of eight writers.
fault-races: $(STAMP)
	BEDROCK_RACES=$(RACES) BEDROCK_PATCHES=$(PATCHES) $(BIN)/python -m pytest --timeout 0 \
	  tests/integration/tools/test_patch_race.py tests/integration/tools/test_parallel_patches.py
	$(RECORD) races RACES=$(RACES) PATCHES=$(PATCHES)

# ABORTS of model requests on kept connections, plain, TLS and through proxies: none hangs, none spoils the next request.
fault-aborts: $(STAMP)
	BEDROCK_ABORTS=$(ABORTS) $(BIN)/python -m pytest --timeout 0 tests/unit/llm/test_abort.py
	$(RECORD) aborts ABORTS=$(ABORTS)

# PROVIDER_SECONDS of each group of eight providers that do harm: memory is bounded, and others' commands take at most 250 ms.
fault-providers: $(STAMP)
	BEDROCK_PROVIDER_SECONDS=$(PROVIDER_SECONDS) BEDROCK_PROVIDER_P99=0.25 $(BIN)/python -m pytest --timeout 0 -s \
	  tests/e2e/test_hostile_providers.py
	$(RECORD) providers SECONDS=$(PROVIDER_SECONDS)

# RESUMES streams, cut, slow, over killed servers and pruned logs, and COMMIT_RACES that begin at the moment of a commit:
# no law of a watch is broken.
fault-watch: $(STAMP)
	BEDROCK_RESUMES=$(RESUMES) BEDROCK_COMMIT_RACES=$(COMMIT_RACES) $(BIN)/python -m pytest --timeout 0 -s \
	  tests/integration/server/test_watch_laws.py tests/e2e/test_watch_laws.py
	$(RECORD) watch RESUMES=$(RESUMES) COMMIT_RACES=$(COMMIT_RACES)

# CANCELS of parents with sub-agents at work, and FAMILIES whose server is killed: nobody is left behind.
fault-agents: $(STAMP)
	BEDROCK_AGENT_CANCELS=$(CANCELS) BEDROCK_AGENT_KILLS=$(FAMILIES) \
	  $(BIN)/python -m pytest --timeout 0 tests/integration/actors/test_sub_agents_stopped.py tests/e2e/test_sub_agents.py
	$(RECORD) agents CANCELS=$(CANCELS) FAMILIES=$(FAMILIES)

# MCP_CANCELS of calls to an MCP server at random moments: one result per call, and no process is left.
fault-mcp: $(STAMP)
	BEDROCK_MCP_CANCELS=$(MCP_CANCELS) $(BIN)/python -m pytest --timeout 0 -k cancels_at_random_moments \
	  tests/integration/mcp/test_servers.py tests/e2e/test_mcp.py
	$(RECORD) mcp CANCELS=$(MCP_CANCELS)

# CLIENT_CANCELS of runs whose calls a client answers at the same moment: each call has one end, and one result.
fault-client-tools: $(STAMP)
	BEDROCK_CLIENT_CANCELS=$(CLIENT_CANCELS) $(BIN)/python -m pytest --timeout 0 \
	  tests/integration/actors/test_client_tools.py
	$(RECORD) client-tools CANCELS=$(CLIENT_CANCELS)

# FUZZED_CALLS of one principal, of every method, whose fields name what belongs to another one: nothing comes through.
fault-principals: $(STAMP)
	BEDROCK_FUZZED_CALLS=$(FUZZED_CALLS) $(BIN)/python -m pytest --timeout 0 -k nothing_of_another_principal \
	  tests/e2e/test_principals.py tests/integration/sandbox/test_separation.py
	$(RECORD) principals CALLS=$(FUZZED_CALLS)

# HTTP_CALLS that are made up, by the description of the API: each answer is in it, and none is 5xx. HTTP_CUTS of event
# streams, and as many of EventSource's, while gateway and server are killed: no gap, no duplicate. And attacks.
fault-http: $(STAMP)
	@PYTHONPATH=. $(BIN)/python -m tests.peers.install node
	BEDROCK_HTTP_CALLS=$(HTTP_CALLS) BEDROCK_HTTP_CUTS=$(HTTP_CUTS) BEDROCK_PEERS=1 $(BIN)/python -m pytest --timeout 0 \
	  tests/e2e/test_http.py tests/peers/test_front_ends.py::test_event_source_resumes_by_itself
	$(RECORD) http CALLS=$(HTTP_CALLS) CUTS=$(HTTP_CUTS)

# LEASE_STATES of two nodes that share conversations, in the model of that: only the owner acts. Needs 1 GB a million, so
# that it is no part of `make fault`.
.PHONY: fault-lease
fault-lease: $(STAMP)
	BEDROCK_LEASE_STATES=$(LEASE_STATES) $(BIN)/python -m pytest --timeout 0 tests/property/test_lease_protocol.py

# The tests themselves, killed SUITE_KILLS times at random moments and run again: nothing is left that troubles them.
fault-suite: $(STAMP)
	PYTHONPATH=.:clients $(BIN)/python -m tests.fault.interrupted_suite --kills $(SUITE_KILLS)
	$(RECORD) suite KILLS=$(SUITE_KILLS)

MINUTES ?= 10

.PHONY: soak
soak: $(STAMP)  ## Work with clients of every kind while the server is killed again and again: nothing is lost (MINUTES, SEED, FRESH=1)
	PYTHONPATH=.:clients $(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(FRESH),--fresh)

# What is done most with conversations.
E2E_SHORT = cancel queue sub_agents asking fork images structured_output

.PHONY: cluster-e2e
cluster-e2e: $(STAMP)  ## Run the end-to-end tests through a node that owns none of their conversations (SHORT=1 for some), and a round of `make cluster`
	BEDROCK_E2E_NODES=2 $(BIN)/python -m pytest $(TEST_WORKERS) $(CLUSTER_ROUND) $(if $(SHORT),$(E2E_SHORT:%=tests/e2e/test_%.py),tests/e2e) $(ARGS)

.PHONY: cluster
cluster: cluster-e2e  ## After cluster-e2e, work through any of three nodes while they, PostgreSQL, disks, clocks and networks fail (MINUTES, SEED, SHORT)
	-@PYTHONPATH=. $(BIN)/python -m tests.peers.install faketime # without it, no clock is set, and the report says so
	PYTHONPATH=.:clients $(BIN)/python -m tests.soak.cluster --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

CONVERSATIONS ?= 100 1000
CANCELS_ACROSS ?= 200
JOINS ?= 9

.PHONY: cluster-faults
cluster-faults: $(STAMP)  ## Measure how soon all rests when a node dies, cancels across nodes, and what joins and leaves cost (CONVERSATIONS, CANCELS_ACROSS, JOINS)
	PYTHONPATH=.:clients $(BIN)/python -m tests.soak.cluster.measured --conversations $(CONVERSATIONS) \
	  --cancels $(CANCELS_ACROSS) --joins $(JOINS)

.PHONY: reliability
reliability: $(STAMP)  ## Write docs/reliability.md with the figures of reports/soak.json, cluster-soak.json and fault.json
	PYTHONPATH=.:clients $(BIN)/python -m tests.generate.reliability

.PHONY: figures
figures: $(STAMP)  ## Write docs/figures.json, docs/figures.md and the figures of README.md and docs/cluster.md from the reports of the three below
	PYTHONPATH=.:clients $(BIN)/python -m tests.generate.figures

.PHONY: bench
bench: $(STAMP)  ## Measure everything that is published beside its goals; writes reports/bench.json (PARTS="core store" for some)
	PYTHONPATH=.:clients $(BIN)/python -m tests.bench $(PARTS)

.PHONY: bench-peers
bench-peers: $(STAMP)  ## Measure the same turns with LangGraph and bare threads; installs into .peers
	PYTHONPATH=.:clients $(BIN)/python -m tests.bench.peers $(ARGS)

.PHONY: bench-cluster
bench-cluster: $(STAMP)  ## Measure the same turns on one, two and three nodes with a PostgreSQL, and with LangGraph; installs into .peers
	PYTHONPATH=.:clients $(BIN)/python -m tests.bench.cluster $(ARGS)

STUBS = PYTHONPATH=.:clients python -m tests.generate.stubs

.PHONY: protos
protos: $(STAMP)  ## Generate the Python stubs, and the client's plain values, from protos/
	$(STUBS) .
	PYTHONPATH=.:clients $(BIN)/python -m tests.generate.values

.PHONY: released
released: $(STAMP)  ## Write protos/released.binpb, which the contract is held to, from protos/; with a release only
	cd protos && buf build --exclude-source-info -o released.binpb
	@echo "Write this into CHANGELOG.md, and why: SHA-256 begins with \`$$(sha256sum protos/released.binpb | cut -c1-16)\`"

.PHONY: protos-drift
protos-drift: $(STAMP)
	@fresh=$$(mktemp -d) && trap "rm -rf $$fresh" EXIT && mkdir -p $$fresh/clients $$fresh/server/contract && $(STUBS) $$fresh && \
	  diff -r -x __init__.py -x __pycache__ $$fresh/clients/bedrock/v1 clients/bedrock/v1 && \
	  for stub in $$fresh/server/contract/*; do diff $$stub server/contract/; done
	@PYTHONPATH=.:clients python -m tests.generate.values --check

.PHONY: clean
clean:  ## Remove the environment and everything generated that is not committed
	rm -rf $(VENV) .venv-* .peers .soak clients/node/node_modules reports build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
