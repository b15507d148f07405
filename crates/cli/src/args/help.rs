//! What `--help` teaches beside the options of a command.

pub(super) const ABOUT: &str = "Keeps open connections alive when the host under them changes its address";

pub(super) const LONG_ABOUT: &str = "\
Whimbrel keeps open connections alive when the host under them changes its address.

Run it on both ends of a connection: `whimbrel up`, as root, with no configuration.
Connections between the two hosts, old and new, then survive a change of network: a
download goes on, an ssh session goes on. Programs need not know, and nothing else in
the network needs to run anything.";

pub(super) const AFTER_HELP: &str = "\
Examples:
  whimbrel doctor                 does this machine have all that is needed?
  whimbrel up                     start the daemon, in the foreground
  whimbrel status                 is it ready? (exit status 0: yes)
  whimbrel connections            which connections would survive a move?
  whimbrel events --follow        watch what happens while you change networks
  whimbrel connections --json | jq '.connections[] | select(.state == \"moved\")'

All commands but `up`, `doctor`, `clean` and `events --from` ask a running daemon. They find it by
--run-dir or WHIMBREL_RUN_DIR.
The JSON that --json prints is described in docs/json.md (installed: share/doc/whimbrel/json.md).";

pub(super) const UP_HELP: &str = "\
What it does to the system:
  - opens UDP port 2031 and answers other hosts that run Whimbrel; a host that runs
    nothing is asked a few times when a connection to it opens, then left alone
  - makes a key pair at the first start (in the state directory)
  - makes a TUN device, whimbrel0
  - attaches an eBPF program to the interfaces, which sees where sockets of UDP send to;
    while it has introduced connections to their other ends, others that leave packets
    alone until a connection moves
  - where /sys/fs/bpf is no bpffs: mounts one in the run directory
  - while connections are moved: keeps the former address on `lo`, adds routing rules,
    and sets net.ipv4.conf.all.src_valid_mark=1, so that strict rp_filter lets them pass
  - takes this away again when no connection needs it. What moved connections need
    stays when the daemon stops, so that they go on and it can be restarted under them;
    `whimbrel clean` removes it.

It needs root, or CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN (to
mount a bpffs where /sys/fs/bpf has none, to take over what a daemon before it left, and to
make the network namespaces that sockets of other hosts live in).
To say which program has a connection it also needs CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE.
The configuration is optional; the file that is installed as /etc/whimbrel/whimbrel.toml
shows every key with its default.

Examples:
  whimbrel up
  whimbrel up --config /etc/whimbrel/whimbrel.toml
  whimbrel --run-dir /run/w2 up --state-dir /var/lib/w2      one in another network namespace";

pub(super) const CONNECTIONS_HELP: &str = "\
The state says what a change of network would do to the connection:
  native       known to both ends; survives a move. Its packets are not touched
  moved        carried to another address than the one it was opened with
  not confirmed
               the same, but the peer has not answered since: nothing shows that it arrives.
               Or, with nothing under `via`, as native, but nothing shows that it would survive
  held         nothing is sent: a new path, the peer or `whimbrel resume` is waited for,
               as the lines below the table say
  pending      being introduced to the other end: a few round trips, or some 15 s
               where nothing answers
  unprotected  a move would end it: the lines below the table say why
  lost at the move
               it had not been introduced in time, and a move has ended it
Where a state has several reasons, a number behind it says which line is about it.

`via` is what carries it after a move: `rewrite` replaces addresses in its packets and
costs nothing; `tunnel` puts them into UDP, where a NAT or a firewall rules rewriting out.
The end that did not move answers each connection as it comes, the one way or the other.";

pub(super) const EVENTS_HELP: &str = "\
The daemon keeps some thousand events. `event_log` in the configuration has it write all of them
to a file, in the lines that --json prints (docs/json.md), which --from reads.

The time line has a lane for each peer: the path that packets took, what carried connections,
the connections themselves (their number, where there are many), numbered hand-offs, holds
and absences with their times and durations. Any browser shows it.

Examples:
  whimbrel events --follow                          watch what happens
  whimbrel events --plot moves.svg                  draw what the daemon remembers
  whimbrel events --from events.jsonl --plot -      draw a log, to standard output";

#[cfg(feature = "dbus")]
pub(super) const NOTIFY_HELP: &str = "\
One notification for a hand-off, however many connections it moved, and one for peers that
give no answer; no more than one of either in ten seconds. It runs until the session ends,
waits for a daemon that goes away, and needs a user who may ask the daemon (the group
`whimbrel`). It is off by default; a session starts it by itself with
  systemctl --user enable --now whimbrel-notify";

pub(super) const HANDOFF_HELP: &str = "\
The daemon moves by itself when an address vanishes or a better one appears. This
command moves now: to another address that the host has as well, or, with no address,
once more to the preferred one (which makes the peers check the path again). The path
that is left carries on until the new one is confirmed, if its interface has a default
route.

Examples:
  whimbrel handoff --to 198.51.100.7     to the second network, while both are up
  whimbrel handoff --peer 203.0.113.5    only the connections with this peer";

pub(super) const SUSPEND_HELP: &str = "\
Nobody has to say so before a move: connections go on from wherever this host is next, and
peers that do not hear it any more keep their ends open. Who says so spares them the time
of finding out. whimbrel-sleep.service does it whenever the system sleeps, once it is
enabled.

The command returns when the peers have answered, after a second at the latest. Network
changes are not acted on before `whimbrel resume`, nor is anything sent for the
connections that wait; new connections are left alone. A restart of the daemon changes
nothing about that.

With connections named, these alone wait, at both ends, through moves and restarts.

Examples:
  whimbrel suspend                       all of them; this host goes away
  whimbrel suspend 203.0.113.5:22        those with this server's ssh";

pub(super) const COMMUNITY_HELP: &str = "\
The hosts of a community, those of one owner, may hand sockets to one another and be each
other's anchors. Nobody else may, but for a connection that was granted, once.

One host founds it and is its steward: it holds the key that says who belongs to it.
Others join by a code that a steward draws and people pass on by voice; no key is typed.
Only stewards invite and revoke, so the laptop that travels had better be none.

A host that is revoked is told so, and all others are: those that are awake at once, one
that sleeps when it meets the next of them. It may be taken for a member by one that has
met nobody since.

Examples:
  whimbrel community init                                          on the first host
  whimbrel community invite                                        prints a code
  whimbrel community join 7-crossover-clockwork-tolerance desk     on the second
  whimbrel community revoke laptop                                 it was stolen
  whimbrel community grant 203.0.113.5:22                          one connection, to a stranger";

pub(super) const MOVE_HELP: &str = "\
The program that has the connection stands still for the moment that it takes. Its socket
then reads as aborted (ECONNABORTED), and the one on the other host goes on: with all that
was not sent, not acknowledged and not read. Where anything fails it stays and goes on here.

The other host must know this one as a member of its community (`whimbrel community`), or
the connection be granted to it (`whimbrel community grant`, and `accept` there). A far
end that runs Whimbrel is told where the connection is; for one that runs nothing this
host passes packets on, as long as its daemon runs.

With --pid a whole process goes, memory and connections, by CRIU; with --tree its descendants
too, with --cgroup all of its control group. New clients of a server reach it there. The other
host needs CRIU as well, the files that the process has open, and `processes = true` in its
configuration.

`whimbrel connections --servers` shows what can be named, sockets of servers (listener:..., udp:...) too.
The exit status is 0 if all of them moved.

Examples:
  whimbrel move --pid 4711 --to 198.51.100.9            a process, as a whole
  whimbrel move 192.0.2.7:5432 --to 198.51.100.9 --process proxy
  whimbrel move pid:4711 --to 2 --process worker        all connections of a process
  whimbrel move listener:192.0.2.7:80 --to 2 --process web   new clients reach it there
  whimbrel move udp:192.0.2.7:53 --to 2 --process dns        and so do those of a UDP server";

pub(super) const RECEIVE_HELP: &str = "\
The connection is the program's standard input and output, as under inetd. WHIMBREL_LOCAL
and WHIMBREL_REMOTE tell its ends, WHIMBREL_UUID its name. Its beginning was read by who had
it: the program goes on where that one stopped.

Where the socket of a server is given (listener:..., udp:...), that itself is standard input,
as under inetd's `wait`: the program accepts connections of it, or receives its datagrams.
WHIMBREL_REMOTE is 0.0.0.0:0 or [::]:0 then. Connections that nobody had accepted follow, each
with a program of its own.

It goes on until it is ended; a daemon that is started anew is waited for, for a minute.
Programs that receive more than one connection, or state with it, use libwhimbrel instead.

Example:
  whimbrel receive worker -- /usr/local/bin/serve-one        here, and then at the other host:
  whimbrel move 192.0.2.7:5432 --to tablet --process worker";

pub(super) const RUN_HELP: &str = "\
The program has a network of its own in which the anchor's address is the only one. What it
opens goes by the anchor, and its other ends take it to be there; they need not run
anything. So they notice nothing when this host moves, nor when `whimbrel move` gives a
connection to another host.

It needs no root, where the kernel lets users have namespaces, but the right to ask the
daemon (group `whimbrel`). The program gets 128 ports of the anchor's, for what it opens: as
many connections with one other end at a time. Others that it binds have to be leased: say
them with --port, as far as the anchor lends them, or they are taken (EADDRINUSE); with
--address it has all of them, and answers pings too; without it the anchor itself answers
those, and programs get no answers to theirs. With `--anchor self` it has this host's own
addresses and ports, as any program. Nothing of this host's own network is seen behind an
anchor, 127.0.0.1 included; names are looked up by the servers in /etc/resolv.conf, which have to
be reachable from the anchor.

Examples:
  whimbrel run --anchor home -- ssh server.example.org
  whimbrel run --anchor 203.0.113.5 --port 8080 -- python3 -m http.server 8080
  whimbrel run --anchor home --address 203.0.113.70 -- nginx -g 'daemon off;'
  whimbrel run --anchor home --hidden -- ssh server.example.org";

pub(super) const ANCHOR_HELP: &str = "\
`[anchor]` in the configuration makes a host lend ports of its address to the hosts of its
community: 128 to each program of `whimbrel run`, another for each --port of it, and 128 to
all programs together that use libwhimbrel on one host. It has to stay where it is, as a
server does.

Examples:
  whimbrel anchor                     what is lent, and what depends on this host
  whimbrel anchor stop --within 300   before it is switched off";

pub(super) const CLEAN_HELP: &str = "\
A daemon that is stopped removes all that it made, unless connections are moved: what
carries these stays, so that they go on and the next `whimbrel up` takes them over. This
command removes it instead: kept addresses, rules and routes, the device whimbrel0,
programs, maps and links in the bpffs, sysctls (which get their former values), the
journal. The connections that had moved end; all others go on. The hosts at the other ends
are told before, and their answers are waited for at most two seconds: there they end at
once (behind a gateway after a minute at the earliest), and here when their programs or TCP
give up.

It needs root, and the network namespace that the daemon ran in. It refuses elsewhere, as
long as that namespace is there, and while a daemon runs, and does nothing where nothing
is left. The key pair and the remembered keys in the state directory stay.";
