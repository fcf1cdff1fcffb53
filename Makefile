# leasegen: everything a developer or CI runs. CI runs `make test more`.

SHELL         := bash

GO            ?= go
STATICCHECK   := honnef.co/go/tools/cmd/staticcheck@v0.8.2
PROOF_ROUNDS  ?= 100
TRIALS        ?= 100
SOAK          ?= 20m
SITE          ?= localhost:8000
# Packages whose tests run at once, where a step does not say one. Most of these mostly wait: for TTLs, servers and elections.
TEST_PACKAGES ?= 2
# Tests that make more runs, by their names without Test, wherever they are; make test runs each other one once.
# The rules of every backend once more, in other settings;
AGAIN         := Conformance(OnCluster|WithLeastRights|Pooled|OnSmallPools)|Cluster
# what is bounded among many rows and large messages;
BOUNDS        := ManyCostAsFew|OperatorsPageThroughMany(Rows|Keys)|AcquiringReadsNoOthersParked|ScriptsDoLittleAtATime|ReadsAreBoundedInBytesFromTheFirstOn|LargeMessagesAreReadAFewAtATime|DeadLettersKeptAndDroppedAddUp|FleetOf40000|LateCostsWhatIsLate|Scale|SkewedTable|SlotsHugeLateTransaction
# mutants, which show that tests can fail;
CONTROLS      := Mutant[A-Za-z]*|(|Ledger)MutantsAreCaught|SimulationCatchesMutants|CursorMutant(IDBeforeXID|IDOnly)|CursorTortureWidened|FreezeFence(Only|Removed)
# and fleets that take all of the machine.
LOADS         := Rebalance|HeldTransaction|Soak
MORE_NAMES    := Test($(AGAIN)|$(BOUNDS)|$(CONTROLS)|$(LOADS))
MORE          := ^$(MORE_NAMES)$$
# Proofs last: beside the suites with the race detector a cluster replaces masters that have no processor.
MORE_IN        = $(shell grep -rlE --exclude-dir=bin --include='*_test.go' '^func $(MORE_NAMES)\b' . | xargs -n1 dirname | sort -ru)

# Tests that make more runs with the race detector alone: loads that keep all cores busy for long, and the modes in which a driver can send queries;
BUSIEST       := CursorTorture|TableTorture|ReconnectsKillNobody|QueryModes
# and whole servers that restart, are cut off, restored, promoted, or slow to store, which each starts for itself.
OUTAGES       := History|TableSetBack|PromotionOf[A-Za-z]*|(ServerRestart|Outage)KillsNobody|NetworkResetsKillNobody|AllConnectionsEndAtOnce|TerminatedHeartbeat|HandoverWaitsForTheDiskOnce
RACED_ALONE   := ^Test($(BUSIEST)|$(OUTAGES))$$

SUITE         := ^TestConformance$$
# How the core meets a backend that misbehaves is shown by TestMisbehaviour; make more shows it on each backend, too.
MISBEHAVING   := $(SUITE)/^Misbehaving
# Make test leaves these tests to make more.
LATER         := -skip '$(MORE)|$(RACED_ALONE)|$(MISBEHAVING)'
# Two rows of make test, which are to end together: what takes longest on PostgreSQL, and all others; and what takes longest on Redis, and
# what compiles programs. Each has one package at a time, but for the others, which are small: a server that shares two cores with many
# tests of three packages is late for seconds.
BACKENDS      := ./runtime/leasepg ./runtime/leaseredis
ON_POSTGRES   := ./runtime/leasepg ./proof
ON_REDIS      := ./runtime/leaseredis ./proof/redis
BUSY          := ./cmd/leasegen ./generator/... ./internal/snippets
# With the race detector make more runs the runtime and the backends; first their suites, which make a machine late for other tests. It
# would see no race in what processes share, nor in the generator, and little in simulations that the suite does not show it.
RACE          := ./runtime/lease ./runtime/leasemem ./runtime/leasesql/... ./runtime/leasehealth ./runtime/leaseweb \
  ./runtime/backend/... ./internal/faultproxy ./internal/streamtest ./examples/filebackend
# Programs that measure leasegen and draw it, and the kits by which tests start servers: make more runs the tests of both.
PROGRAMS      := ./proof/failover/... ./proof/pictures ./internal/pgtest ./internal/redistest
# Modules of their own, for what most users need not compile: make more, without and with the race detector.
MODULES       := bench examples/operated internal/browser internal/site internal/snippets/manifests runtime/leaseotel/dashboards runtime/leaseweb/webtest
RACED         := runtime/leaseotel runtime/leasesql/sqltest

# run LOG, FLAGS AND PACKAGES, HOW MANY AT ONCE: tests, writes what they print to a log as well, and repeats what failed at the end.
run = @set -o pipefail; mkdir -p bin; $(GO) test -vet=off -p $(or $(3),$(TEST_PACKAGES)) -timeout 30m $(2) 2>&1 | tee -a bin/$(1).log || { $(FAILURES) bin/$(1).log; exit 1; }

# Logs of servers surround the lines that say what failed; this repeats those.
FAILURES      := echo "== what failed, from all of the above:"; grep -E '^ *--- FAIL|^FAIL|^panic:|^fatal error:|DATA RACE|^ +[a-z0-9_]+_test\.go:[0-9]+: '

# The program that generates code for tables, and the runtime's own queries; sqlc/go.mod pins it.
export LEASEGEN_SQLC := $(CURDIR)/bin/sqlc

# Where tests keep a new PostgreSQL server's data directory: a copy costs less than another initdb.
export LEASEGEN_PG_TEMPLATES := $(CURDIR)/bin/pgdata

# Heaps of a few megabytes need not be collected again and again; large ones are in time. make more tests with Go's own settings.
lint generated goldens unit suite postgres redis busy others: export GOGC ?= 400
lint generated goldens unit suite postgres redis busy others: export GOMEMLIMIT ?= 2GiB

.PHONY: help demo operated check goldens unit suite test more waiting beside postgres others redis busy again raced race programs modules generated generate lint proof proof-redis soak scale failover pictures bench bench-quick bench-growth bench-held compare apps site site-serve clean tools packages

help:
	@echo "make demo         three replicas in one process, one freezes; needs Go alone"
	@echo "make operated     three replicas with probes, metrics and pages, and buttons for what can go wrong, until Ctrl-C (ON=redis)"
	@echo "make check        what finds most mistakes soon: lint, unit tests, goldens, the suite in memory, and its rules on PostgreSQL and"
	@echo "                  Redis; goldens and rules with go test -short, which leaves out most scenarios and what is generated twice"
	@echo "make test         all checks, and each rule of the contract once on each backend, with real PostgreSQL and Redis servers;"
	@echo "                  how fast it is is measured by the commands below"
	@echo "make more         all of the runtime and the backends with the race detector, outages of whole servers among them; the rules once"
	@echo "                  more, on a cluster, with fewer rights, over a pooler, with small pools, with another driver; bounds among much"
	@echo "                  data; mutants; other modules, the pages in a browser among them; programs that measure, draw and build the site;"
	@echo "                  the kits by which tests start servers; CI runs make test more"
	@echo "make race         the part of make more that has the race detector"
	@echo "make generate     write generated code again: sqlc's and leasegen's own"
	@echo "make lint         gofmt, go vet, staticcheck, and the words, links and lengths of pages (internal/words)"
	@echo "make proof        $(PROOF_ROUNDS) rounds each of SIGKILL and SIGSTOP, rebalancing, a held transaction (PROOF_ROUNDS=n);"
	@echo "                  kills while handlers fail, with pools of any size, are here only; make test has them with small ones;"
	@echo "                  no absolute speed is judged: other work on the machine makes it take longer, and does not make it fail"
	@echo "make proof-redis  the same on Redis and on a cluster of six nodes; PROOF_ROUNDS is a percentage there;"
	@echo "                  on an idle machine: a cluster replaces masters that have no processor for two seconds, and loses messages"
	@echo "make soak         four kinds of consumers for $(SOAK), with kills and busy loops: not late, no growth (SOAK=d)"
	@echo "make scale        what statements touch on PostgreSQL, and scripts do on Redis, at a hundredth, a tenth and full size"
	@echo "make failover     $(TRIALS) trials of each fault on each kind of lock: how long a resource has no owner (TRIALS=n)"
	@echo "make pictures     draw docs/images again from real runs: a fence, a rebalance, a message's life, takeovers; two minutes"
	@echo "make bench        measure beside bare loops, River, watermill, asynq, pgoutbox's algorithm and JetStream; writes docs/bench.md"
	@echo "make bench-quick  the same with smaller turns, into bin/bench-quick"
	@echo "make bench-growth how the main figures change with topics, backlog, parked keys, dead letters, replicas, consumers and nodes;"
	@echo "                  writes docs/growth.md"
	@echo "make bench-held   what processes do that hold 40,000 topics, or 10,000 streams on Redis, and have no work"
	@echo "make compare      measure what pgoutbox and pyfly were measured with, beside their figures"
	@echo "make apps         generate for applications of others, fetched as modules and annotated as they are"
	@echo "make site         the site of README.md and docs, in bin/site; open bin/site/index.html"
	@echo "make site-serve   the same at http://$(SITE), built anew at each look, while you write (SITE=host:port)"
	@echo "make clean        remove build and test caches of this tree"

demo:
	@$(GO) run ./cmd/leasegen ./examples/quickstart
	@$(GO) run ./examples/quickstart

operated:
	@$(GO) -C examples/operated build -o $(CURDIR)/bin/operated . && bin/operated -on $(or $(ON),postgres)

# Three at once, the longest first.
check: tools
	@SECONDS=0; $(MAKE) --no-print-directory -s -j3 --output-sync=target suite goldens lint unit && echo "== all good: make check took $$SECONDS s"

goldens:
	$(GO) test -vet=off -short ./generator/...

unit:
	$(GO) test -vet=off ./runtime/lease ./runtime/leasemem ./runtime/backend ./runtime/operate ./internal/faultproxy

# Every rule of the contract, and a scenario of each kind.
suite:
	$(GO) test -vet=off -short -run '$(SUITE)' $(BACKENDS)

test: tools
	@rm -f bin/waiting.log bin/beside.log
	@SECONDS=0; $(MAKE) --no-print-directory -s -j2 waiting beside || { $(FAILURES) bin/waiting.log bin/beside.log 2>/dev/null; exit 1; }; \
	  echo "== all good: make test took $$SECONDS s"

more: tools
	@rm -f bin/again.log bin/race.log bin/programs.log
	@SECONDS=0; $(MAKE) --no-print-directory -s -j2 again raced || { $(FAILURES) bin/again.log bin/race.log bin/programs.log 2>/dev/null; exit 1; }; \
	  echo "== all good: make more took $$SECONDS s"

# Each has two rows of work, in each one step after the other: more at once than the cores bear only makes the tests wait for each other.
waiting:
	@failed=0; for step in postgres others; do $(MAKE) --no-print-directory -s $$step || failed=1; done; exit $$failed

beside:
	@failed=0; for step in lint generated redis busy; do $(MAKE) --no-print-directory -s $$step || failed=1; done; exit $$failed

postgres:
	@echo "== go test: on PostgreSQL (servers are started and stopped by the tests)"
	$(call run,waiting,$(LATER) $(ON_POSTGRES),1)

others:
	@echo "== go test: all others"
	$(call run,waiting,$(LATER) $$($(GO) list ./... | grep -vxF "$$($(GO) list $(ON_POSTGRES) $(ON_REDIS) $(BUSY) $(PROGRAMS) ./internal/words)"))

redis:
	@echo "== go test: on Redis and on clusters"
	$(call run,beside,$(LATER) $(ON_REDIS),1)

busy:
	@echo "== go test: the command, the generator, and pages"
	$(call run,beside,$(LATER) $(BUSY),1)

raced:
	@failed=0; for step in race programs modules; do $(MAKE) --no-print-directory -s $$step || failed=1; done; exit $$failed

again:
	@echo "== go test: the rules once more, bounds among much data, mutants, and fleets that take all of the machine"
	$(call run,again,-run '$(MORE)' $(MORE_IN),1)

# Not from the cache: some tests read docs, which are outside of their module, so that Go would not see them change.
modules:
	@echo "== go test: modules of their own, the page in a browser among them"
	@set -e; for m in $(MODULES); do (set -x; cd $$m; $(GO) test -count=1 -vet=off -timeout 10m ./...); done

race: tools
	@rm -f bin/race.log
	@echo "== go test -race: the runtime and the backends"
	$(call run,race,-race -run '$(SUITE)' $(BACKENDS),1)
	$(call run,race,-race -skip '$(MORE)' $(RACE))
	$(call run,race,-race -skip '$(MORE)|$(SUITE)' $(BACKENDS),1)
	@set -e; for m in $(RACED); do (set -x; cd $$m; $(GO) test -race -vet=off -timeout 10m ./...); done

programs:
	@echo "== go test: programs that measure and draw, and the kits by which tests start servers"
	$(call run,programs,$(PROGRAMS))

generated:
	@echo "== generated code is up to date"
	$(GO) run ./cmd/leasegen -check ./...
	cd examples/operated && $(GO) tool leasegen -check ./...

generate: $(LEASEGEN_SQLC)
	@echo "== sqlc"
	cd sqlc && $(LEASEGEN_SQLC) generate
	@echo "== leasegen"
	$(GO) run ./cmd/leasegen ./...
	cd examples/operated && $(GO) tool leasegen ./...

lint:
	@echo "== gofmt"
	@files=$$(git ls-files -co --exclude-standard '*.go' | grep -v testdata/ | xargs gofmt -l) && \
	  if [ -n "$$files" ]; then echo "not formatted, run gofmt -w on:"; echo "$$files"; exit 1; fi
	@echo "== go vet"
	$(GO) vet ./... && $(GO) vet -tags apps ./cmd/leasegen
	@echo "== staticcheck"
	GOBIN=$(CURDIR)/bin $(GO) install $(STATICCHECK) && bin/staticcheck ./...
	@set -e; for m in $(MODULES) $(RACED); do (set -x; cd $$m; $(GO) vet ./... && $(CURDIR)/bin/staticcheck ./...); done
	@echo "== words and pages"
	$(GO) test -count=1 -vet=off ./internal/words

proof: tools
	@SECONDS=0; set -ex; export PROOF_ROUNDS=$(PROOF_ROUNDS) PROOF_HELD=2m; \
	  $(GO) test -count=1 -v -timeout 60m ./proof; \
	  $(GO) test -count=1 -timeout 60m ./runtime/leasepg; \
	  $(GO) test -count=1 -timeout 60m -run Simulation ./runtime/leasetest -seeds 10000; \
	  set +x; echo "== make proof took $$SECONDS s"

proof-redis: tools
	@SECONDS=0; set -ex; export PROOF_ROUNDS=$(PROOF_ROUNDS); \
	  $(GO) test -count=1 -v -timeout 120m ./proof/redis; \
	  $(GO) test -count=1 -timeout 60m ./runtime/leaseredis; \
	  set +x; echo "== make proof-redis took $$SECONDS s"

soak: tools
	PROOF_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 90m -run 'TestSoak$$' ./proof

scale: tools
	SCALE_TABLE=$(CURDIR)/scale.txt $(GO) test -count=1 -v -timeout 60m -run 'TestScale$$' ./runtime/leasepg
	SCALE_TABLE=$(CURDIR)/scale-redis.txt $(GO) test -count=1 -v -timeout 60m -run 'TestScriptsDoLittleAtATime$$' ./runtime/leaseredis

failover: tools
	$(GO) run ./proof/failover -trials $(TRIALS)

# On an idle machine: the pictures show times. `go run ./proof/pictures -render` draws without running.
pictures: packages
	$(GO) run ./proof/failover -locks topic -faults SIGTERM,SIGKILL,SIGSTOP -trials 40 -raw proof/pictures/raw/failover.json
	$(GO) run ./proof/pictures

bench: packages
	cd bench && $(GO) run .

bench-quick: packages
	cd bench && $(GO) run . -quick -docs ../bin/bench-quick -raw ../bin/bench-quick/results.json

bench-growth: packages
	cd bench && $(GO) run . growth

bench-held: packages
	cd bench && $(GO) run . held

compare: packages
	cd bench && $(GO) run . compare

# Only what is generated for is compiled, the first time with what it imports.
apps:
	$(GO) test -tags apps -count=1 -v -timeout 60m -run 'TestApps$$' ./cmd/leasegen

site:
	@$(GO) -C internal/site run . -root $(CURDIR) -out $(CURDIR)/bin/site

site-serve:
	@$(GO) -C internal/site run . -root $(CURDIR) -serve $(SITE)

clean:
	$(GO) clean -testcache
	rm -rf bin

$(LEASEGEN_SQLC): sqlc/go.mod
	@echo "== building sqlc (once: two minutes)"
	@cd sqlc && $(GO) build -o $@ github.com/sqlc-dev/sqlc/cmd/sqlc

# The tests need a C compiler, for the race detector, PostgreSQL 14 or newer, PgBouncer,
# Redis 6.2 or newer, Prometheus' promtool, Chromium, zsh and fish. sqlc is built last: it needs the compiler, too.
tools: packages
	@$(MAKE) -s --no-print-directory $(LEASEGEN_SQLC)

# RUNLEVEL=1: in a container without an init, packages do not start servers of their own.
packages:
	@missing=""; \
	command -v $(GO) >/dev/null || { echo "Go is missing: https://go.dev/dl/"; exit 1; }; \
	command -v cc >/dev/null || command -v gcc >/dev/null || missing=" gcc libc6-dev"; \
	ls /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb 2>/dev/null | grep -q . || \
	  command -v initdb >/dev/null || [ -n "$$LEASEGEN_PG_BIN" ] || missing="$$missing postgresql"; \
	PATH="$$PATH:/usr/sbin" command -v pgbouncer >/dev/null || missing="$$missing pgbouncer"; \
	command -v redis-server >/dev/null || [ -n "$$LEASEGEN_REDIS_SERVER" ] || missing="$$missing redis-server"; \
	for s in zsh fish; do command -v $$s >/dev/null || missing="$$missing $$s"; done; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || [ -n "$$LEASEGEN_CHROMIUM" ] || missing="$$missing chromium fonts-dejavu-core"; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "== installing$$missing"; \
	  apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	else \
	  echo "missing:$$missing; install with: sudo apt-get install$$missing"; exit 1; \
	fi
