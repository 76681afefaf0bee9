# Starling. `make demo` and `make test` need nothing run before them.
# Builds are kept outside the checkout, so that a second clone does not build the dependencies again.

SHELL := /bin/bash
export CARGO_TARGET_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/starling/target
CARGO ?= cargo
# One profile and one feature set for everything: RocksDB and Burn are compiled once. CUDA is looked for at run time.
BUILD := --release --workspace --locked --features cuda
BIN := $(CARGO_TARGET_DIR)/release
# A folder for the demo's report, and the device of one of its nodes.
OUT ?= out/demo
DEVICE ?= cpu
# Recordings of `make follower`, and the seed of the bytes that it flips.
FOLLOWER ?= out/follower
SEED ?= 1
# Kills in `make kills`.
KILLS ?= 20
# Seconds for each target in `make fuzz`.
SECONDS ?= 60

# Seeds of `make sim`, the most for each injected bug, those for each kind of fault after which flocks have to be back in time,
# and a file for its table.
SEEDS ?= 1000
MUTATIONS ?= 2000
RECOVERIES ?= 24
JSON ?=
# Sizes of flocks in `make cost`.
SIZES ?= 10,100,1000

# Scenarios of `make lab`, and a folder for what comes of them.
SCENARIOS ?= configs/lab/quick
LAB_OUT ?= out/lab

# Model of `make bench-join` and `make bench-round`; codec and engine of the second.
PRESET ?= 30m
CODEC ?= int8
ENGINE ?= ring

# Comparisons of `make bench-quality`, and a folder for their rows; QUICK=1 plays some that take minutes.
QUICK ?=
LIST ?= benches/quality/$(if $(QUICK),quick,screen).txt
RESULTS ?= $(if $(QUICK),out/quality,benches/results)

# A member that lies, for tests: beside the others, and never one of them.
BYZANTINE := $(CARGO) build $(BUILD) --features starling-node/byzantine --bin starling-byzantine

.PHONY: help byzantine demo follower python gpu-check lab test verify fix bench bench-quality bench-codec bench-control bench-reduce bench-train bench-step bench-fetch bench-checkpoint bench-engine bench-lab bench-join bench-round bench-uplink sim cost kills fuzz build system

help:
	@echo "make demo    build, then train on four nodes with a kill and a join; report in OUT=$(OUT);"
	@echo "             DEVICE=wgpu: one of the nodes on a graphics device"
	@echo "make follower  record short runs, verify them in Python, and flip bytes drawn from SEED=$(SEED); in FOLLOWER=$(FOLLOWER)"
	@echo "make python  test the package for trainers of one's own; STARLING_PYTHON is a Python that has numpy, and PyTorch for all of it"
	@echo "make gpu-check  count what a step asks of a GPU, and compile its kernels, without one; STARLING_CUDA is CUDA's folder"
	@echo "make lab     play SCENARIOS=$(SCENARIOS) on an emulated network; reports in LAB_OUT=$(LAB_OUT)"
	@echo "make test    all tests"
	@echo "make verify  read-only gate: format, lints, tests, docs"
	@echo "make fix     format and apply lint suggestions"
	@echo "make bench   all benches, beside other systems where PYTHON has them; JSON=FILE for rows"
	@echo "             also by itself: bench-codec, bench-reduce, bench-train, bench-step, bench-fetch, bench-engine, bench-lab,"
	@echo "             bench-checkpoint (what a checkpoint adds to a round, some five minutes),"
	@echo "             bench-join (a newcomer joins a flying flock; PRESET=$(PRESET)),"
	@echo "             bench-round (a round beyond its wire time; PRESET=$(PRESET) CODEC=$(CODEC) ENGINE=$(ENGINE)),"
	@echo "             bench-control (the flock's choice of its steps beside other rules, simulated),"
	@echo "             bench-uplink (what nodes say of lines of known rates, some three minutes; needs root)"
	@echo "make bench-quality    the queue of comparisons of validation loss; hours, goes on where it stopped; QUICK=1: minutes;"
	@echo "             LIST=$(LIST), rows and curves in RESULTS=$(RESULTS)"
	@echo "make sim     simulate SEEDS=$(SEEDS) histories in virtual time, injected bugs and all; JSON=FILE for the table"
	@echo "make cost    what a round costs a node in simulated flocks of SIZES=$(SIZES) nodes; JSON=FILE for the table"
	@echo "make byzantine    build starling-byzantine, a member that lies, for the tests"
	@echo "make kills   kill a node at KILLS=$(KILLS) random moments; prints p50 and p99 of the gap"
	@echo "make fuzz    fuzz every decoder and the engine for SECONDS=$(SECONDS) each with libFuzzer"

system:
	@tests/scripts/system-packages.sh build
system-test:
	@tests/scripts/system-packages.sh build test

build: system
	@echo "building (the first time takes a while: see README)"
	$(CARGO) build $(BUILD) --bins

demo: build
	@$(BIN)/starling-demo --bin-dir $(BIN) --out $(OUT) --device $(DEVICE)

# The trainer for GPUs, on a driver that computes nothing: what a step asks, and every kernel through NVIDIA's compiler.
# NVIDIA's packages go beside the builds; without them it is skipped.
gpu-check: build
	@tests/scripts/gpu-check.sh $(BIN)

# Python's packages go beside the builds; without them it is skipped.
follower: build
	@tests/scripts/follower.sh $(BIN) $(FOLLOWER) $(SEED)

# The trainer's side of the bridge, beside a node for tests and beside real ones. It is skipped without Python; numpy goes beside the builds.
python: build
	@STARLING_BIN=$(BIN) tests/scripts/python.sh

# Where no network can be emulated, on loopback.
lab: build
	@$(BIN)/starling-lab run $(SCENARIOS) --quiet --out $(LAB_OUT) --or-plain

# Members that lie, for tests/tests/byzantine.rs.
byzantine: system
	$(BYZANTINE)

# The protocol is tested with its simulator and its injected bugs, which the programs must not have, so beside their builds.
PROTOCOL := CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/sim $(CARGO)
PROTOCOL_TESTS := --release --locked -p starling-protocol --features sim,mutations

# End-to-end tests start the binaries.
test: system-test
	$(CARGO) build $(BUILD) --bins
	$(BYZANTINE)
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		$(CARGO) nextest run $(BUILD) --exclude starling-protocol --no-fail-fast && \
		$(PROTOCOL) nextest run $(PROTOCOL_TESTS) --no-fail-fast; \
	else \
		$(CARGO) test $(BUILD) --exclude starling-protocol --no-fail-fast && \
		$(PROTOCOL) test $(PROTOCOL_TESTS) --no-fail-fast; \
	fi
	@$(MAKE) --no-print-directory python
	@$(MAKE) --no-print-directory gpu-check
	@$(MAKE) --no-print-directory lab
	@$(MAKE) --no-print-directory sim SEEDS=1000 MUTATIONS=0
	@$(MAKE) --no-print-directory fuzz SECONDS=3

verify: system-test
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(BUILD) --all-targets -- -D warnings
	$(CARGO) clippy $(BUILD) --features starling-node/byzantine --bin starling-byzantine -- -D warnings
	$(MAKE) test
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc $(BUILD) --no-deps

fix:
	$(CARGO) clippy $(BUILD) --all-targets --fix --allow-dirty --allow-staged
	$(CARGO) fmt --all

bench: bench-codec bench-control bench-reduce bench-train bench-step bench-fetch bench-checkpoint bench-engine bench-lab bench-join bench-round

bench-codec bench-control bench-train bench-step bench-fetch bench-checkpoint: build
	@JSON=$(JSON) $(BIN)/$@

# After deaths as well, and over limited links where namespaces can be made.
bench-reduce: build
	@JSON=$(JSON) $(BIN)/$@
	@JSON=$(JSON) $(BIN)/$@ --deaths 24 --nodes 4,8 --mib 16 --codec bf16,int8
	@if [ "$$(id -u)" = 0 ]; then JSON=$(JSON) $(BIN)/$@ --nodes 4 --rate 100; \
		else echo "limited links SKIPPED: network namespaces need root"; fi

# Validation loss of many settings: hours on idle cores, and it goes on where it stopped.
bench-quality: build
	@benches/quality/run.sh $(BIN) $(LIST) $(RESULTS)

# What the lab's network carries.
bench-lab: build
	@$(BIN)/starling-lab measure $(if $(JSON),--json $(JSON))

# Whole flocks on the lab's network, two to four minutes each.
bench-join: build
	@$(BIN)/starling-lab bench-join --preset $(PRESET) --out $(LAB_OUT) $(if $(JSON),--json $(JSON))
bench-round: build
	@$(BIN)/starling-lab bench-round --preset $(PRESET) --codec $(CODEC) --engine $(ENGINE) --out $(LAB_OUT) \
		$(if $(JSON),--json $(JSON))

bench-uplink: build
	@JSON=$(JSON) benches/uplink.sh $(BIN)

bench-engine: system
	$(CARGO) bench $(BUILD) --bench engine

kills: build
	@tests/scripts/kills.sh $(BIN) $(KILLS)

# A crash leaves its input beside the corpora, in the folder for builds.
fuzz: system
	@tests/scripts/fuzz.sh $(SECONDS)

# The simulator switches on what the programs must not have, so it is built by itself.
SIM := CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/sim $(CARGO) run --release --locked --quiet --manifest-path tests/sim/Cargo.toml --
sim:
	@$(SIM) --canary
	@$(SIM) --recovery $(RECOVERIES)
	@$(SIM) --seeds $(SEEDS) $(if $(filter-out 0,$(MUTATIONS)),--mutations $(MUTATIONS)) $(if $(JSON),--json $(JSON))
# By itself: other work on the machine shows in the engine's time.
cost:
	@$(SIM) --cost $(SIZES) $(if $(JSON),--json $(JSON))
