# shardgate: `make help` lists the targets. Nothing needs to be installed by hand but Go, make, Python with pip, Node with npm and, for
# `make test`, a JDK with Maven: programs that are missing are fetched into $${XDG_CACHE_HOME:-~/.cache}/shardgate and stay there.

SHELL         := /bin/bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

GO       ?= go
FUZZTIME ?= 5s
# Arguments for `make run`, for example ARGS="--routers 2 --data ./dev-data".
ARGS     ?=
# Arguments for `make bench`.
BENCH    ?=

# As in the image: a static program. So what is built for one stage serves the next; only the race detector wants cgo.
export CGO_ENABLED := 0
RACED    := CGO_ENABLED=1 $(GO)

BIN      := bin/shardgate
RACE_BIN := bin/shardgate-race
TESTED   := $(RACED) test -race -shuffle=on -timeout 25m

# tool NAME: the path of a pinned tool, fetched if needed.
tool = $$($(BIN) dev fetch $(1) | cut -d' ' -f2-)

# A heading before each stage of `make test`.
say = @printf '\n\033[1m== %s\033[0m\n' $(1)

.PHONY: run build test fetch lint lint-text fmt gen check-gen unit compat chaos fuzz gate bench bench-move microbench clean help FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## run a cluster of three shards on 127.0.0.1:27017
	@exec $(BIN) dev --shards 3 $(ARGS)

build: $(BIN) ## build bin/shardgate

# Go knows better than make what has changed.
$(BIN): FORCE
	@$(GO) build -o $@ ./cmd/shardgate

$(RACE_BIN): FORCE
	@$(RACED) build -race -o $@ ./cmd/shardgate

FORCE:

test: fetch lint check-gen unit gate compat fuzz ## everything CI runs
	$(call say,"all passed")

fetch: $(BIN)
	$(call say,"parts")
	@$(BIN) dev fetch --lenient

lint: $(BIN) lint-text ## golangci-lint, gofumpt and the house rules that only text shows
	$(call say,"lint")
	@linter="$(call tool,golangci-lint)"; "$$linter" run ./...
	@formatter="$(call tool,gofumpt)"; loose="$$("$$formatter" -l .)"; \
	if [ -n "$$loose" ]; then echo "not formatted (make fmt):"; echo "$$loose"; exit 1; fi

# Types and calls that no linter can name. A line that must name the type says why: "// map[string]any: reason".
lint-text:
	@if grep -rnE --include='*.go' 'map\[string\](any|interface\{\})' . | grep -v '// map\[string\]any: '; then \
		echo 'map[string]any: a struct says what is in it'; exit 1; fi
	@if grep -rnE --include='*.go' 'strings\.(Contains|HasPrefix|HasSuffix|EqualFold)\([A-Za-z.]*[eE]rr\.Error\(\)' . | grep -v '_test\.go:'; then \
		echo 'an error is known by its code, not by its text'; exit 1; fi

fmt: $(BIN) ## format the code
	@linter="$(call tool,golangci-lint)"; "$$linter" fmt ./...
	@formatter="$(call tool,gofumpt)"; "$$formatter" -w .

gen: ## make the generated files again
	@$(GO) generate ./...

# Generated files are committed: making them again must change nothing. Other uncommitted work does not matter.
check-gen:
	$(call say,"generated files")
	@git rev-parse --git-dir >/dev/null; \
	state() { git status --porcelain; git diff | git hash-object --stdin; }; \
	before="$$(state)"; $(GO) generate ./...; after="$$(state)"; \
	if [ "$$before" != "$$after" ]; then echo 'generated files are out of date (make gen):'; git status --short; exit 1; fi

unit: $(RACE_BIN)
	$(call say,"tests")
	@SHARDGATE_BINARY="$(CURDIR)/$(RACE_BIN)" $(TESTED) $$($(GO) list ./... | grep -v '/compat\(/\|$$\)')

compat: $(RACE_BIN) ## the same calls to shardgate and to a real mongod, and real clients
	$(call say,"compat")
	@SHARDGATE_BINARY="$(CURDIR)/$(RACE_BIN)" $(TESTED) -count=1 -timeout 60m ./compat/...

# Everything that dies, stops or moves, with every fault at every step; each test prints its seed.
CHAOS ?= Fault|Dies?|Evict|Failover|Sleeps|UnderLoad|Stop|Killed|Restart|Unowned

chaos: $(RACE_BIN) ## the long form of the fault tests (an hour; CHAOS=a pattern of tests, COMPAT_SEED=a seed)
	$(call say,"chaos")
	@COMPAT_CHAOS=1 SHARDGATE_BINARY="$(CURDIR)/$(RACE_BIN)" $(TESTED) -v -count=1 -timeout 3h -run '$(CHAOS)' ./compat/...

fuzz: ## each fuzzer for FUZZTIME
	$(call say,"fuzz $(FUZZTIME) each")
	@dirs="$$(grep -rlE --include='*_test.go' '^func Fuzz' . | xargs -r -n1 dirname | sort -u)" || true; \
	for dir in $$dirs; do \
		names="$$($(GO) test -list '^Fuzz' "$$dir" | grep '^Fuzz')"; \
		for name in $$names; do \
			echo "-- $$dir $$name"; \
			$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$dir" | tail -n 3; \
		done; \
	done

# Ratios and counts, never times: a busy machine changes neither much.
gate: $(BIN) ## what a point operation allocates, and its processor time against a TCP relay's, have limits
	$(call say,"gate")
	@$(GO) test -count=1 -run Allocat ./router ./router/target ./wire ./catalog/shardkey
	@$(GO) run ./compat/bench -gate

# BENCH="-long -json bench.json" takes ten minutes; `go run ./compat/bench -help` lists the rest.
bench: $(BIN) ## shardgate beside a direct connection, a TCP relay and HAProxy, in a minute
	@$(GO) run ./compat/bench $(BENCH)

bench-move: $(BIN) ## how fast collections move, and what others feel of it (MONGODUMP and MONGORESTORE: programs to compare with)
	@$(GO) run ./compat/benchmove $(BENCH)

microbench: ## all Go benchmarks, with allocations
	@$(GO) test -run '^$$' -bench . -benchmem ./...

clean: ## remove what was built; the cache folder is left alone
	@rm -rf bin
	@$(GO) clean -testcache
