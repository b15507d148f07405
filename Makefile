# `make help` lists what can be made. All of it works on a fresh Debian 12 with a Rust toolchain.

CARGO ?= cargo
PREFIX ?= /usr
DESTDIR ?=
SYSTEMD_UNITS ?= /lib/systemd/system
SYSUSERS ?= /usr/lib/sysusers.d
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
# Where `./setup test` puts a newer CRIU than Debian's, and rustup's place, for shells that do not have it in their path.
export PATH := /usr/local/lib/whimbrel-test/bin:$(PATH):$(HOME)/.cargo/bin

.PHONY: help build demo test test-quick test-all test-programs soak-absence soak-adversary check bench test-kernels fuzz fuzz-long install uninstall clean

help: ## this list
	@sed -n 's/^\([a-zA-Z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-14s %s\n' "$$name" "$$text"; done
	@printf '  make %-14s %s\n' bench-NAME "one of them, e.g. bench-roam, bench-tunnel; ARGUMENTS=--quick for a short run"

build: ## target/release/whimbrel, libwhimbrel and the lab
	@./setup
	$(CARGO) build --release --locked -p whimbrel-cli -p whimbrel-irc-pong -p whimbrel-capi -p whimbrel-lab

demo: build ## watch a download and an ssh session cross a move (as root)
	$(TARGET)/release/whimbrel-lab demo

test: ## the whole suite: unit tests, root tests, lab scenarios, a short fuzz (as root; a part runs without)
	@./setup test
	$(CARGO) run --quiet --locked -p xtask -- test $(ARGUMENTS)

test-quick: ## a choice of it in eight minutes (as root)
	@./setup test
	$(CARGO) run --quiet --locked -p xtask -- test --quick $(ARGUMENTS)

test-all: ## all of it and what takes hours: programs, days of absence, every fault, other kernels; writes docs/tested.md (as root)
	@./setup test test-kernels programs
	$(CARGO) run --quiet --locked -p xtask -- test --all $(ARGUMENTS)

test-programs: build ## sessions of many programs from Debian through moves and a sleep (as root)
	@./setup programs
	$(TARGET)/release/whimbrel-lab run --programs

check: ## format, lint, dependency edges, unit tests
	@./setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) run --quiet --locked -p xtask -- check
	shellcheck setup .ci/run fuzz/run packaging/whimbrel-networkmanager
	$(CARGO) test --quiet --workspace --locked

bench: ## all measurements, each beside its baseline (as root)
	@./setup bench
	$(CARGO) build --release --locked -p whimbrel-cli -p whimbrel-lab -p whimbrel-capi -p whimbrel-bench
	$(TARGET)/release/whimbrel-bench all $(ARGUMENTS)

bench-%:
	@./setup bench
	$(CARGO) build --release --locked -p whimbrel-cli -p whimbrel-lab -p whimbrel-capi -p whimbrel-bench
	$(TARGET)/release/whimbrel-bench $* $(ARGUMENTS)

soak-absence: build ## two laptops away for HOURS (72 unless given), then back: no connection may be lost (as root)
	nice $(TARGET)/release/whimbrel-lab soak-absence $(if $(HOURS),--hours $(HOURS))

soak-adversary: ## RUNS (5000 unless given) random runs of the simulator in which somebody takes what he can
	@./setup
	WHIMBREL_SIM_RUNS=$(if $(RUNS),$(RUNS),5000) $(CARGO) test --locked -p whimbrel-sim --test sim -- taking --nocapture

test-kernels: ## boot Debian's kernels 6.1 and 6.12 in QEMU and run the core scenarios there; with simulated radios, those of Wi-Fi; on arm64, snapshots of sockets
	@./setup test-kernels
	$(CARGO) run --quiet --locked -p xtask -- test-kernels
	$(CARGO) run --quiet --locked -p xtask -- test-kernels 6.1-wifi
	$(CARGO) run --quiet --locked -p xtask -- test-kernels arm64 --test golden

fuzz: ## every fuzz target for half a minute
	@./setup
	$(CARGO) run --quiet --locked -p xtask -- fuzz --seconds 30

fuzz-long: ## every fuzz target for half an hour
	@./setup
	$(CARGO) run --quiet --locked -p xtask -- fuzz --seconds 1800

# The units name the program where it is installed.
UNITS := whimbrel.service whimbrel-sleep.service whimbrel-criu.socket whimbrel-criu@.service
# That of users' sessions, and where it is looked for.
USER_UNIT := whimbrel-notify.service
USER_UNITS ?= /usr/lib/systemd/user
# Where NetworkManager looks for what it calls, wherever the rest is (NetworkManager-dispatcher(8)).
DISPATCHER ?= /usr/lib/NetworkManager/dispatcher.d
# The library's first number is that of its interface (the soname).
LIBRARY := libwhimbrel.so.0.1.0
PYTHON ?= $(PREFIX)/lib/python3/dist-packages

install: ## after `make build`, as root: program, library, manual pages, documentation, systemd units
	@[ -e $(TARGET)/release/whimbrel ] || { echo "There is nothing to install in $(TARGET)/release yet: run \`make build\` first." >&2; exit 1; }
	install -D -m 755 $(TARGET)/release/whimbrel $(DESTDIR)$(PREFIX)/bin/whimbrel
	install -D -m 755 $(TARGET)/release/irc-pong $(DESTDIR)$(PREFIX)/lib/whimbrel/irc-pong
	install -D -m 644 docs/man/whimbrel.1 $(DESTDIR)$(PREFIX)/share/man/man1/whimbrel.1
	install -D -m 644 docs/man/whimbrel.3 $(DESTDIR)$(PREFIX)/share/man/man3/whimbrel.3
	install -D -m 644 $(TARGET)/release/libwhimbrel.so $(DESTDIR)$(PREFIX)/lib/$(LIBRARY)
	ln -sf $(LIBRARY) $(DESTDIR)$(PREFIX)/lib/libwhimbrel.so.0
	ln -sf libwhimbrel.so.0 $(DESTDIR)$(PREFIX)/lib/libwhimbrel.so
	install -D -m 644 $(TARGET)/release/libwhimbrel.a $(DESTDIR)$(PREFIX)/lib/libwhimbrel.a
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include crates/capi/include/whimbrel.h crates/capi/include/libsockmand.h
	install -D -m 644 crates/capi/python/whimbrel/__init__.py $(DESTDIR)$(PYTHON)/whimbrel/__init__.py
	sed 's|^prefix=.*|prefix=$(PREFIX)|' packaging/whimbrel.pc | \
		install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/pkgconfig/whimbrel.pc
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/whimbrel packaging/whimbrel.toml docs/*.md
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/whimbrel/decisions docs/decisions/*.md
	sed -i 's|(\.\./packaging/|(|g' $(DESTDIR)$(PREFIX)/share/doc/whimbrel/*.md
	install -D -m 644 packaging/whimbrel.sysusers $(DESTDIR)$(SYSUSERS)/whimbrel.conf
	for unit in $(UNITS); do \
		sed 's|/usr/bin/whimbrel|$(PREFIX)/bin/whimbrel|g' packaging/$$unit | \
			install -D -m 644 /dev/stdin $(DESTDIR)$(SYSTEMD_UNITS)/$$unit || exit; \
	done
	sed 's|/usr/bin/whimbrel|$(PREFIX)/bin/whimbrel|g' packaging/$(USER_UNIT) | \
		install -D -m 644 /dev/stdin $(DESTDIR)$(USER_UNITS)/$(USER_UNIT)
	for directory in pre-down.d .; do \
		sed 's|/usr/bin/whimbrel|$(PREFIX)/bin/whimbrel|g' packaging/whimbrel-networkmanager | \
			install -D -m 755 /dev/stdin $(DESTDIR)$(DISPATCHER)/$$directory/50-whimbrel || exit; \
	done
	[ -e $(DESTDIR)/etc/whimbrel/whimbrel.toml ] || \
		install -D -m 644 packaging/whimbrel.toml $(DESTDIR)/etc/whimbrel/whimbrel.toml
	[ -n "$(DESTDIR)" ] || getent group whimbrel >/dev/null || groupadd --system whimbrel
	[ -n "$(DESTDIR)" ] || ldconfig
	@echo "Installed. Start it now and at every boot with: systemctl daemon-reload && systemctl enable --now whimbrel"
	@echo "On a machine that sleeps, have it say so to the other ends: systemctl enable whimbrel-sleep"

# What a stopped daemon leaves for moved connections goes with the program: nothing else could remove it.
uninstall: ## as root: stop the daemon, remove what it and `make install` made; keeps configuration and keys
	[ -n "$(DESTDIR)" ] || ! command -v systemctl >/dev/null || for unit in $(filter-out %@.service,$(UNITS)); do \
		systemctl disable --now --quiet $$unit || true; \
	done
	[ -n "$(DESTDIR)" ] || ! [ -x $(PREFIX)/bin/whimbrel ] || $(PREFIX)/bin/whimbrel clean
	rm -f $(DESTDIR)$(PREFIX)/bin/whimbrel $(DESTDIR)$(PREFIX)/share/man/man1/whimbrel.1 \
		$(addprefix $(DESTDIR)$(SYSTEMD_UNITS)/,$(UNITS)) $(DESTDIR)$(SYSUSERS)/whimbrel.conf \
		$(DESTDIR)$(USER_UNITS)/$(USER_UNIT) \
		$(DESTDIR)$(DISPATCHER)/pre-down.d/50-whimbrel $(DESTDIR)$(DISPATCHER)/50-whimbrel
	rm -f $(DESTDIR)$(PREFIX)/share/man/man3/whimbrel.3 $(DESTDIR)$(PREFIX)/lib/pkgconfig/whimbrel.pc \
		$(addprefix $(DESTDIR)$(PREFIX)/lib/,$(LIBRARY) libwhimbrel.so.0 libwhimbrel.so libwhimbrel.a) \
		$(addprefix $(DESTDIR)$(PREFIX)/include/,whimbrel.h libsockmand.h)
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/whimbrel $(DESTDIR)$(PREFIX)/lib/whimbrel $(DESTDIR)$(PYTHON)/whimbrel
	[ -n "$(DESTDIR)" ] || ldconfig
	[ -n "$(DESTDIR)" ] || ! command -v systemctl >/dev/null || systemctl daemon-reload || true
	[ -n "$(DESTDIR)" ] || rm -rf /run/whimbrel
	@echo "Removed. What is left: the configuration in $(DESTDIR)/etc/whimbrel, and this host's keys in" \
		"$(DESTDIR)/var/lib/whimbrel; remove these directories to forget them. The group \`whimbrel\` stays as well."

clean: ## remove all that was built
	$(CARGO) clean
	rm -rf fuzz/target
