# Two commands: `make run` to try it, `make test` to check it. Both install what is missing.

export PREFIX DESTDIR BINARY LINKS MOUNTDIR SYSTEMDDIR
export PATH := $(HOME)/.cargo/bin:$(PATH)
CARGO ?= cargo

.PHONY: help run build install deb test lint deny package fuzz-long damage-long torture-long vopr bench bench-build bench-write bench-alloc bench-clone bench-dedup bench-list bench-object bench-scrub bench-spacemap bench-send bench-zil programs test-s3 test-azure clean

help:
	@echo "make run          build, make a pool in a file, mount it, show it, leave you in it"
	@echo "make test         lints and tests (in CI also make deny and make package)"
	@echo "make build        the release binary: target/release/cenote"
	@echo "make install      puts it in place: PREFIX, DESTDIR, LINKS=auto|yes|no (scripts/install.sh)"
	@echo "make deb          a Debian package: target/debian/*.deb"
	@echo "make lint         rustfmt, clippy, links in the documentation, lock files"
	@echo "make package      the library and the crates below it, as they would be published: target/package"
	@echo "make deny         licences and sources of the dependencies"
	@echo "make damage-long  thousands of damaged images and pools instead of CI's sample"
	@echo "make torture-long hours of random work, crashes and failing devices, judged by zdb"
	@echo "make vopr         the simulator: whole pools from seeds, for SECONDS, or so many SEEDS; VOPR_ARGS=--store: in object stores"
	@echo "make fuzz-long    coverage-guided fuzzing of every decoder (FUZZ_SECONDS each)"
	@echo "make programs     real programs, and a daemon that is killed, for long"
	@echo "make test-s3      a pool in a distributed object store (SeaweedFS) whose nodes die and stand still, for ROUNDS"
	@echo "make test-azure   a pool in Azurite, which speaks as Azure's Blob Storage does and stands still now and then, for ROUNDS"
	@echo "make bench        reads and metadata walks against the raw device file"
	@echo "make bench-alloc  spoiled metaslabs: loading their space maps, and allocations meanwhile"
	@echo "make bench-clone  destroying clones, by livelist and by walking, against OpenZFS's own engine"
	@echo "make bench-dedup  blocks that are all different, deduplicated with tables ten times the cache, against OpenZFS's own engine"
	@echo "make bench-list   listing 10,000 snapshots and 1,000 clones, beside what reading their metadata takes"
	@echo "make bench-write  writes against OpenZFS's own engine; mounts against btrfs and zfs-fuse"
	@echo "make bench-object pools in object stores that take 0, 10 and 30 ms, with and without a line of 10 Gbit/s, beside the client of the"
	@echo "                  store; bytes and requests for overwrites"
	@echo "make bench-scrub  scrubs beside the raw file, reads in front of them, resilvers"
	@echo "make bench-spacemap  log space maps on and off, and OpenZFS's own engine, in a pool that has aged"
	@echo "make bench-send   sending and receiving, full and of 1% changed, against the raw file and OpenZFS's own engine"
	@echo "make bench-zil    synchronous writes beside other file systems (BENCH_DIR=storage); small groups and replay on slow devices;"
	@echo "                  10 minutes (REPLAY_ARGS='--minutes N' for longer logs)"

run:
	scripts/setup.sh run
	$(CARGO) build --release --locked -p cenote-cli
	scripts/run.sh

build:
	$(CARGO) build --release --locked -p cenote-cli

install: build
	scripts/install.sh

deb: build
	scripts/deb.sh

test:
	scripts/setup.sh test
	$(MAKE) lint
	$(if $(CI),$(MAKE) deny package)
	scripts/run-tests.py

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet
	$(CARGO) metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null

# The crate for programs that embed the engine, and those that it is made of.
LIBRARY := format objects vdev store dmu dsl pool engine zpl admin

package:
	$(CARGO) package --locked --no-verify $(LIBRARY:%=-p cenote-%) -p cenote

deny:
	command -v cargo-deny >/dev/null || $(CARGO) install --debug cargo-deny --locked
	$(CARGO) deny check bans licenses sources

clean:
	$(CARGO) clean

FUZZ_SECONDS ?= 300

fuzz-long:
	command -v cargo-fuzz >/dev/null || $(CARGO) install cargo-fuzz --locked
	$(CARGO) run --locked -p cenote-fuzz-targets --bin fuzz-seeds
	for target in $$($(CARGO) fuzz list); do \
		RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run --sanitizer none $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

PEER := target/release/libzpool-peer

# The peer is OpenZFS's own engine, as Debian packages it, with jemalloc preloaded (its best allocator).
bench-build:
	scripts/setup.sh bench
	$(CARGO) build --release --locked -p cenote-bench -p cenote-cli
	cc -O2 -DDEBUG -DZFS_DEBUG -D_GNU_SOURCE -I/usr/include/libspl -I/usr/include/libzfs -o $(PEER) \
		crates/bench/peer/*.c -lzpool -lzfs_core -lnvpair -ljemalloc -lm -lpthread

bench: bench-build
	target/release/cenote-bench read --peer $(PEER) $(BENCH_ARGS)

bench-alloc: bench-build
	target/release/cenote-bench alloc --peer $(PEER) $(BENCH_ARGS)

bench-clone: bench-build
	target/release/cenote-bench clone --peer $(PEER) $(BENCH_ARGS)

bench-dedup: bench-build
	target/release/cenote-bench dedup --peer $(PEER) $(BENCH_ARGS)

bench-list:
	$(CARGO) build --release --locked -p cenote-bench -p cenote-cli
	target/release/cenote-bench list $(BENCH_ARGS)

bench-object:
	$(CARGO) build --release --locked -p cenote-bench
	target/release/cenote-bench object $(BENCH_ARGS)

bench-write: bench-build
	target/release/cenote-bench write --peer $(PEER) $(BENCH_ARGS)

bench-scrub: bench-build
	target/release/cenote-bench scrub --peer $(PEER) $(BENCH_ARGS)

bench-send: bench-build
	target/release/cenote-bench send --peer $(PEER) $(BENCH_ARGS)

# BENCH_DIR: the storage. Rows on a file system in memory say what the log itself takes.
bench-zil: bench-build
	scripts/bench-zil.sh $(or $(BENCH_DIR),/dev/shm/cenote-bench) target/release/cenote \
		target/release/cenote-bench --peer $(PEER) $(BENCH_ARGS)
	target/release/cenote-bench groups --dir $(or $(BENCH_DIR),/dev/shm/cenote-bench) $(GROUPS_ARGS)
	target/release/cenote-bench replay --dir $(or $(BENCH_DIR),/dev/shm/cenote-bench) $(REPLAY_ARGS)

bench-spacemap: bench-build
	target/release/cenote-bench spacemap --peer $(PEER) $(BENCH_ARGS)

damage-long:
	scripts/setup.sh test
	CENOTE_TEST_DEADLINE=0 CENOTE_TORTURE=long $(CARGO) test --locked -p cenote-torture \
		--test devices --test images --test tamper --test matrix -- --nocapture

torture-long:
	scripts/setup.sh test
	CENOTE_TEST_DEADLINE=0 CENOTE_TORTURE=long $(CARGO) test --locked -p cenote-torture \
		--test random --test crash --test logs --test large --test full --test faults \
		--test metadata --test leaks --test intent_log --test snapshots --test reguid \
		--test surgery --test removal --test checkpoint --test objects -- --nocapture

programs:
	scripts/setup.sh test
	CI=1 CENOTE_TEST_DEADLINE=0 CENOTE_PROGRAMS=long $(CARGO) test --locked -p cenote-cli --test programs -- --nocapture

# A distributed object store whose nodes are killed and stopped while programs write and the daemon is killed. ROUNDS of it, each with HARMS to nodes;
# SEED says to which.
ROUNDS ?= 6
HARMS ?= 5

test-s3:
	scripts/setup.sh s3
	CENOTE_TEST_DEADLINE=0 CENOTE_ROUNDS=$(ROUNDS) CENOTE_HARMS=$(HARMS) CENOTE_SEED=$(SEED) \
		$(CARGO) test --locked -p cenote-cli --test cluster -- --ignored --nocapture while_nodes_die

test-azure:
	scripts/setup.sh azure
	CENOTE_TEST_DEADLINE=0 CENOTE_ROUNDS=$(ROUNDS) CENOTE_HARMS=$(HARMS) CENOTE_SEED=$(SEED) \
		$(CARGO) test --locked -p cenote-cli --test cluster -- --ignored --nocapture in_azure

# The simulator: whole pools, with all their threads, from seeds. SEED is the first one. It ends after SECONDS or with the first that
# fails; SEEDS=500: after so many seeds, whatever fails. A sixth of the pools is in an object store; VOPR_ARGS=--store: all of them.
SECONDS ?= 600
SEEDS ?=
SEED ?= $(shell date +%s)000

vopr:
	scripts/setup.sh test
	$(CARGO) build --release --locked -p cenote-vopr
	target/release/vopr $(if $(SEEDS),--seeds $(SEEDS),--seconds $(SECONDS)) --seed $(SEED) --jobs $(shell nproc) $(VOPR_ARGS)
