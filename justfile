# Recipes for everyday work: `just` lists them. `just` comes with `cargo install just` or
# `pip install rust-just`; every recipe is one plain command, so that it also works without.

_default:
    @just --list --unsorted

# Three replicas on this machine.
demo *arguments:
    cargo run --release -- demo {{ arguments }}

# All tests.
test *arguments:
    cargo test --workspace {{ arguments }}

# Checks without running anything.
check: fmt-check layout clippy doc

# Format the code.
fmt:
    cargo fmt --all

fmt-check:
    cargo fmt --all --check

# Rules that no compiler checks: protocols apart, short files, nothing half done.
layout:
    cargo xtask layout

# How many lines each protocol has, without tests.
lines *arguments:
    ci/lines {{ arguments }}

# Lints; warnings are errors.
clippy:
    cargo clippy --workspace --all-targets -- -D warnings

# The documentation; broken links are errors.
doc *arguments:
    RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps {{ arguments }}

# The release binary.
build:
    cargo build --release

# Simulator campaigns for every protocol: `just simulate --fixed 1000 --fresh 1000`.
simulate *arguments: build
    ci/simulate {{ arguments }}

# The conformance kit: `just conformance multipaxos partition`.
conformance *arguments:
    cargo run --profile test -p quintet-simulator --example conformance -- {{ arguments }}

# Every world of a small scope of Multi-Paxos: what is searched whole, see docs/design/small-scopes.md.
exhaustive *arguments: build
    ci/exhaustive {{ arguments }}

# Every injected bug must be found: `just bugs multipaxos 2000 lowest_ballot_wins`.
bugs *arguments:
    ci/bugs {{ arguments }}

# Hand-made cases: plays them, or writes what happens into them with `--rewrite`.
transcripts *arguments:
    cargo run --profile test -p quintet-simulator --example transcript -- {{ arguments }}

# The code of shared memory in every order that the memory model allows, with more preemptions than
# the tests have: half a minute besides building.
loom preemptions='6':
    LOOM_MAX_PREEMPTIONS={{ preemptions }} cargo test --release -p quintet-runtime --lib loom

# kill -9 real replicas under load; every acknowledged write must be found.
kill *arguments: build
    ci/kill {{ arguments }}

# Members and protocols of a cluster change, one after the other, under a checked load.
journey *arguments:
    ci/journey {{ arguments }}

# Real replicas under all faults for minutes, checked by what their clients saw.
torture *arguments='--seconds 300 --replicas 3': build
    target/release/quintet torture {{ arguments }}

# Datagrams past the kernel's sockets: tests on networks of their own, then three replicas in three
# namespaces (as root; says why where it cannot): `just af-xdp --protocol multipaxos`.
af-xdp *arguments:
    cargo test -p quintet-runtime --features af-xdp --lib af_xdp -- --nocapture
    cargo build --release --features af-xdp
    ci/af-xdp {{ arguments }}

# The linearizability checker beside an independent one: `just porcupine 20000`.
porcupine *arguments:
    ci/porcupine {{ arguments }}

# redis-cli, redis-benchmark, redis-py, node-redis and ioredis against a demo.
clients *arguments: build
    ci/clients {{ arguments }}

# Derecho over shared memory and over loopback TCP, beside what copying memory and writing to
# sockets could do in the same run: `just bench-links large-memory small`.
bench-links *arguments:
    cargo bench -p quintet-runtime --bench links -- {{ arguments }}

# A protocol's own cost per command, without sockets.
bench-protocol:
    cargo bench -p quintet-protocols

# Beside unreplicated Redis, in interleaved rounds.
bench-redis *arguments: build
    python3 bench/speed.py {{ arguments }}

# How fast a replica that lost its log has the state again: idle, over a slow link, under load.
bench-transfer *arguments: build
    python3 bench/transfer.py {{ arguments }}

# The systems that `quintet lab compare` can measure beside this one, from their registries: Redis and
# a Java machine from Debian, ZooKeeper from Maven Central, etcd from the Go module proxy, a store on
# openraft from crates.io.
peers: openraft
    {{ if `id -u` == "0" { "" } else { "sudo " } }}apt-get install -y redis-server default-jre-headless maven golang-go
    cd bench/peers/zookeeper && mvn -q -B dependency:copy-dependencies -DoutputDirectory="{{ justfile_directory() }}/target/peers/zookeeper"
    cd bench/peers/etcd && go build -o "{{ justfile_directory() }}/target/peers/etcd" .

# The store on openraft alone; in a workspace and a target directory of its own.
openraft:
    cargo build --release --locked --manifest-path bench/openraft-store/Cargo.toml --target-dir target/peers/openraft

# Beside etcd, ZooKeeper, openraft and Redis, in interleaved rounds (needs `just peers`).
compare *arguments: build
    target/release/quintet lab compare --etcd target/peers/etcd --zookeeper 'target/peers/zookeeper/*' --openraft target/peers/openraft/release/openraft-store {{ arguments }}

# Licences and advisories of dependencies (needs cargo-deny).
deny:
    cargo deny check

# Spelling (needs typos).
typos:
    typos

# Checks to run before every commit, in three minutes with a warm build.
fast *arguments:
    ci/fast {{ arguments }}

# All that a change must pass.
ci *steps:
    .ci/run {{ steps }}

# Every fuzz target over its corpus and mutations, for that many seconds each; with nightly Rust and
# cargo-fuzz: cargo fuzz run --features libfuzzer TARGET
fuzz seconds="60":
    cargo run --manifest-path fuzz/Cargo.toml --target-dir target --bin smoke -- {{seconds}}
