# `make help` lists what can be made. All of it works on a fresh Debian 12 with a Rust toolchain.

CARGO ?= cargo
PREFIX ?= /usr
DESTDIR ?=
SYSTEMD_UNITS ?= /lib/systemd/system
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
# rustup's place, for shells that do not have it in their path
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: help build demo test check bench test-kernels fuzz fuzz-long install uninstall clean

help: ## this list
	@sed -n 's/^\([a-zA-Z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-14s %s\n' "$$name" "$$text"; done
	@printf '  make %-14s %s\n' bench-NAME "one of them, e.g. bench-roam, bench-tunnel; ARGUMENTS=--quick for a short run"

build: ## target/release/whimbrel and the lab
	@./setup
	$(CARGO) build --release --locked -p whimbrel-cli -p whimbrel-lab

demo: build ## watch a download and an ssh session cross a move (as root)
	$(TARGET)/release/whimbrel-lab demo

test: ## the whole suite: unit tests, root tests, lab scenarios, a short fuzz (as root; a part runs without)
	@./setup
	$(CARGO) run --quiet --locked -p xtask -- test

check: ## format, lint, dependency edges, unit tests
	@./setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) run --quiet --locked -p xtask -- check
	shellcheck setup .ci/run fuzz/run
	$(CARGO) test --quiet --workspace --locked

bench: ## all measurements, each beside its baseline (as root)
	@./setup bench
	$(CARGO) build --release --locked -p whimbrel-cli -p whimbrel-lab -p whimbrel-bench
	$(TARGET)/release/whimbrel-bench all $(ARGUMENTS)

bench-%:
	@./setup bench
	$(CARGO) build --release --locked -p whimbrel-cli -p whimbrel-lab -p whimbrel-bench
	$(TARGET)/release/whimbrel-bench $* $(ARGUMENTS)

test-kernels: ## boot Debian's kernels 6.1 and 6.12 in QEMU and run the core scenario there
	@./setup test-kernels
	$(CARGO) run --quiet --locked -p xtask -- test-kernels

fuzz: ## every fuzz target for half a minute
	@./setup
	$(CARGO) run --quiet --locked -p xtask -- fuzz --seconds 30

fuzz-long: ## every fuzz target for half an hour
	@./setup
	$(CARGO) run --quiet --locked -p xtask -- fuzz --seconds 1800

install: ## after `make build`, as root: program, manual page, systemd unit
	install -D -m 755 $(TARGET)/release/whimbrel $(DESTDIR)$(PREFIX)/bin/whimbrel
	install -D -m 644 docs/man/whimbrel.1 $(DESTDIR)$(PREFIX)/share/man/man1/whimbrel.1
	install -D -m 644 packaging/whimbrel.service $(DESTDIR)$(SYSTEMD_UNITS)/whimbrel.service
	[ -e $(DESTDIR)/etc/whimbrel/whimbrel.toml ] || \
		install -D -m 644 packaging/whimbrel.toml $(DESTDIR)/etc/whimbrel/whimbrel.toml
	@echo "Installed. Start it now and at every boot with: systemctl daemon-reload && systemctl enable --now whimbrel"

uninstall: ## as root: remove what `make install` installed, keeping configuration and keys
	[ -n "$(DESTDIR)" ] || ! command -v systemctl >/dev/null || systemctl disable --now whimbrel || true
	rm -f $(DESTDIR)$(PREFIX)/bin/whimbrel $(DESTDIR)$(PREFIX)/share/man/man1/whimbrel.1 \
		$(DESTDIR)$(SYSTEMD_UNITS)/whimbrel.service

clean: ## remove all that was built
	$(CARGO) clean
	rm -rf fuzz/target
