# Two commands for a newcomer: `make demo` and `make test`. The rest is for those who change things.

.PHONY: demo test test-long lint build install-deps fuzz mutate

# A tree for the demo: `make demo DIR=/some/tree`.
DIR ?=

export PATH := $(HOME)/.cargo/bin:$(PATH)

demo: install-deps
	@./scripts/demo.sh $(if $(DIR),"$(DIR)",)

test: install-deps
	@./scripts/test.sh short

test-long: install-deps
	@./scripts/test.sh long

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo xtask tidy

build: install-deps
	cargo build --release --package bulla

install-deps:
	@./scripts/install-deps.sh

fuzz:
	cargo xtask fuzz --seconds 600

mutate:
	cargo xtask mutate
