# Two commands for a newcomer: `make demo` and `make test`. `make check` is for daily work.

.PHONY: demo check test test-long lint build install deb install-deps install-build-deps install-demo-deps fuzz mutate

# A tree for the demo: `make demo DIR=/some/tree`.
DIR ?=

# The directory for `make install`. DESTDIR is put before every path.
PREFIX ?= /usr/local
DESTDIR ?=

export PATH := $(HOME)/.cargo/bin:$(PATH)

demo: install-demo-deps
	@./scripts/demo.sh $(if $(DIR),"$(DIR)",)

# Format, lints, house rules, unit tests.
check: install-deps
	@./scripts/test.sh check

# All tests that are not slow. BULLA_ALL=1: all that CI runs.
test: install-deps
	@./scripts/test.sh short

test-long: install-deps
	@./scripts/test.sh long

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo xtask tidy

build: install-build-deps
	cargo build --release --package bulla

# After `make build`. Needs root, unless you can write to DESTDIR or PREFIX.
install:
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" ./scripts/install.sh

# Makes packages (program, symbols) in target/ from the result of `make build`.
deb:
	@./scripts/deb.sh

install-build-deps:
	@./scripts/install-deps.sh build

install-demo-deps:
	@./scripts/install-deps.sh demo

install-deps:
	@./scripts/install-deps.sh test

fuzz:
	cargo xtask fuzz --seconds 600

mutate:
	cargo xtask mutate
