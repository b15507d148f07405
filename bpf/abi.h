/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Everything that the eBPF programs and user space share.
 *
 * Integers have a fixed width and no struct has implicit padding, since maps compare keys byte by byte. Addresses and
 * ports are in network order, everything else in the host's. The Rust mirror is crates/datapath/src/abi.rs; a test
 * compares the two by the BTF of the compiled objects.
 */
#ifndef WHIMBREL_ABI_H
#define WHIMBREL_ABI_H

#include <linux/bpf.h>
#include <linux/types.h>

/* An IPv6 address, or an IPv4 one in its IPv4-mapped form (RFC 4291 section 2.5.5.2). Aligned, to be copied faster. */
struct address {
	__be32 words[4];
} __attribute__((aligned(8)));

/* The 5-tuple as this host names the flow. */
struct flow_tuple {
	struct address local;
	struct address remote;
	__be16 local_port;
	__be16 remote_port;
	__u8 transport; /* IP protocol number: 6 or 17 */
	__u8 zero[3];
};

/* Map `flows`: own tuple -> this. The flow has moved while a place differs from its binding's (P-14). */
struct flow_entry {
	__u32 binding;
	__u32 home_local_place;
	__u32 home_peer_place;
	__be16 wire_local_port;
	__be16 wire_remote_port;
	/* Places at which the flow was last heard rewritten (P-24); written by ingress where the carrier is FOLLOW. */
	__u32 heard_local_place;
	__u32 heard_peer_place;
	__u8 held;   /* enum held */
	__u8 lapsed; /* enum lapsed */
	__u8 real_view; /* 1: its sockets are shown the binding's locators while it has moved */
	__u8 conflict; /* enum conflict */
	__u32 echoes_from; /* a TSval (RFC 7323) of this end's: echoes of older ones are not to be measured; see lib/lapse.h */
	__u32 clock;	   /* what this end's TSvals are ahead of CLOCK_MONOTONIC by */
	__u32 delivery;	   /* where its local end is; see DELIVERY_ROUTES */
	/*
	 * Written by the programs. DELIVERY_PASSING, TCP: where the last segment that its far end sent began.
	 * HELD_UNCONNECTED: when a datagram of it last left, or came from its peer while it had moved, as far as that
	 * was seen; in the unit of `tunnelled_until`.
	 */
	__u32 sent;
	__u32 tunnelled_until; /* until when HELD_TUNNELLED holds: CLOCK_MONOTONIC in ms, which wraps around */
	/* Written by the programs: when its wire names were last found to be nobody's; in the unit of `tunnelled_until`. */
	__u32 free_at;
	__u16 free_between; /* the `locators` of the binding between which they were */
	__u8 zero[2];
};

/*
 * Where a local end is: 0, in this host's own stack; the index of the outer end of an endpoint namespace's pair of
 * interfaces; or this, at another host, which the routing table finds.
 */
#define DELIVERY_ROUTES 0xffffffffU

/* The same of a host that this one is the router of: while the flow is native, this host's own forwarding does all. */
#define DELIVERY_PASSING 0xfffffffdU

/*
 * The link-layer address of the inner end of every such pair (locally administered): what is put into a namespace from
 * where there was no Ethernet header, or another's, bears it. Nobody asks for it.
 */
#define INNER_HARDWARE_ADDRESS { 0x02, 'W', 'B', 'e', 'p', 0 }

/* Map `lent`: this, a local end -> struct lent. */
struct lent_key {
	struct address address;
	__be16 port; /* 0: every port, and what has none */
	__u8 transport; /* IP protocol number */
	__u8 zero[5];
};

/*
 * Not here, and a socket of this host's own stack had it before: connections that it has still, or is about to have,
 * are not lent.
 */
#define LENT_SHARED 0xfffffffdU

/* Where packets for a lent end go that are of no flow. */
struct lent {
	__u32 delivery;  /* into this endpoint namespace; 0: not here; see LENT_SHARED */
	__u32 binding; /* to this peer, which has it on lease, by the TUN device; 0: to nobody */
};

/* What is told of the TCP sockets of an endpoint namespace. */
enum follow {
	FOLLOW_CLOSES = 1, /* that they close: what opens is known to who has made it */
	FOLLOW_ALL = 2, /* that they open, too: programs open connections in it */
};

/* What becomes of packets from an endpoint namespace that are of no flow. */
enum unknown {
	UNKNOWN_DROPPED = 0, /* its address is another's, and is not to be seen outside */
	UNKNOWN_ROUTED = 1,  /* its address is this host's: they leave as the host's own do */
	UNKNOWN_TUNNELLED = 2, /* its address is on lease from the peer of `binding`: to the TUN device */
};

/* Map `endpoints`: index of the outer end of an endpoint namespace's pair of interfaces -> this. */
struct endpoint {
	struct address address; /* the only one that it sends from */
	__u32 binding;
	__u32 namespace; /* its id, as this host's namespace knows it (RTM_NEWNSID, IFLA_LINK_NETNSID); see NAMESPACE_UNKNOWN */
	__u8 unknown; /* enum unknown */
	__u8 zero[7];
};

/* There is no id of it, or it was not told. */
#define NAMESPACE_UNKNOWN 0xffffffffU

enum held {
	HELD_BACK = 1,	    /* no packet of it leaves, wherever it is */
	HELD_TUNNELLED = 2, /* while it has moved it goes by the tunnel where its binding would have it rewritten */
	HELD_HIDDEN = 4,    /* introductions in it are not for this host, and go to its socket */
	HELD_BEYOND = 8,    /* its far end is a host behind the peer, whose resets come by the tunnel */
	HELD_LATE = 16,	    /* its peer has named it after it had left: what comes from there is somebody else's (P-206) */
	HELD_UNCONNECTED = 32, /* UDP: its socket is not connected, and may hear others from where its peer was */
};

enum conflict {
	CONFLICT_GIVES_WAY = 1, /* the daemon gives it up where somebody else opens a connection under its names */
	CONFLICT_REPORTED = 2,	/* written by the programs: somebody did */
	/* HELD_UNCONNECTED, written by the programs: what it last heard came natively, from where its peer was */
	CONFLICT_NATIVE = 4,
	CONFLICT_STILL_THERE = 8, /* HELD_LATE, written by the programs: whoever was there has been heard */
};

enum lapsed {
	LAPSED_NOT = 0,
	LAPSED_MILLISECONDS = 1, /* the unit of this end's TSvals */
	LAPSED_MICROSECONDS = 2,
};

/* A place that never is: the flow was not heard rewritten. */
#define PLACE_NEVER 0xffffffffU

/*
 * Map `helped`: own tuple -> this. A flow that was answered on in the peer's name, or whose kept bytes are on their
 * way; or whose socket rests.
 */
struct helped_flow {
	__u32 offset;	    /* bytes that were put into what the peer sends */
	__u32 acknowledged; /* of what the socket sends, all before this was acknowledged in the peer's name */
	__u32 delivered;    /* of that, all before this is acknowledged by the peer; ingress moves it on */
	__u8 phase;	    /* enum helped */
	__u8 zero[3];
};

enum helped {
	HELPED_KEPT = 1,      /* what the socket sends goes to the daemon, and nothing of the peer's gets in */
	HELPED_HELD = 2,      /* it is held; nothing of the peer's gets in */
	HELPED_DELIVERED = 3, /* it is held, except for acknowledgements, until the peer has what was kept */
	HELPED_OVER = 4,      /* numbers are translated */
	HELPED_RESTS = 5,     /* of TCP or UDP: its socket is being moved. What comes for it goes to the daemon */
};

/* Map `wire_flows`: this -> own tuple. */
struct wire_flow {
	__u32 binding;
	__be16 local_port;
	__be16 remote_port;
	__u8 transport;
	__u8 zero[3];
};

enum carrier {
	CARRIER_NATIVE = 0,
	CARRIER_REWRITE = 1,
	CARRIER_TUNNEL = 2,
	CARRIER_HOLD = 3,
	CARRIER_FOLLOW = 4, /* as REWRITE for flows that were heard rewritten, as TUNNEL for the rest (P-24) */
	CARRIER_LISTEN = 5, /* as HOLD; the first packet under a flow's own names is reported (P-39) */
};

#define ALLOWANCE_UNLIMITED 0xffffffffffffffffULL

/* Map `bindings`: binding id -> this. */
struct binding {
	struct address local; /* locators that rewritten packets carry */
	struct address peer;
	__u32 local_place;
	__u32 peer_place;
	__u32 interface; /* device that rewritten packets leave by; 0: ask the routing table */
	/*
	 * Written by the programs: until when (CLOCK_MONOTONIC, ns) rewritten packets are known to leave by this
	 * device to this Ethernet address. See next_hop_stays().
	 */
	__u32 neighbour_interface;
	__u64 neighbour_until;
	__u64 allowance; /* bytes of IP packets that may still leave by rewriting (P-18) */
	__u8 neighbour[6];
	__u8 carrier; /* enum carrier */
	__u8 parked;  /* 1: the peer is away; its TCP sockets here must not give up */
	__u32 arrival; /* device that the peer's packets come by, of flows at home; 0: any */
	__u32 mtu; /* the longest rewritten packet, in bytes, that the path is known to take; 0: not known */
	__u32 peer_since; /* when `peer_place` became this one: CLOCK_MONOTONIC in ms, which wraps around */
	/* 1: the daemon keeps the wire ports at `local` of all its flows of UDP that have moved from others (P-160) */
	__u8 names_kept;
	__u8 zero;
	__u16 locators; /* another with each change of `local` or `peer` */
};

/* Map `locators`: this, as found in a packet from the peer -> struct locator. */
struct locator_pair {
	struct address peer;
	struct address local;
};

struct locator {
	__u32 binding;
	__u32 arrival; /* device that the peer's packets come by between them; 0: any */
};

/* Map `paths`: the pair of addresses that a peer and this host talk between, translated or not -> this. */
struct path {
	__u32 arrival; /* device that has this host's, and that its answers leave by */
	__u32 port; /* the control port, of UDP */
};

/* Map `homes`: a pair of addresses that flows go between -> by where what is sent natively between them leaves. */
struct home {
	struct address next_hop; /* the peer's own where it is on the link */
	__u32 interface; /* has this host's address */
	__u32 zero;
};

/* Not all leave by one device. */
#define HOME_SEVERAL 0xffffffffU

/*
 * Map `traffic`: the pair of addresses that a peer and this host talk between -> this. What is said between the daemons
 * is not part of it, nor is what nobody answers: a segment without data.
 */
struct traffic {
	struct bpf_timer timer; /* goes off where something is overdue, perhaps */
	__u64 heard; /* when something last came: CLOCK_MONOTONIC, ns; 0: not yet */
	__u64 asked; /* when the first thing left since then; 0: nothing has */
	__u32 usual; /* how long it takes until something comes then, smoothed: microseconds */
	__u32 varies; /* what that differs by, smoothed (RFC 6298) */
	__u32 answer; /* written by the daemon: what is granted in any case, in microseconds */
	__u16 port; /* written by the daemon: the control port */
	__u8 answers; /* so many have come, as far as it matters: see ANSWERS_ENOUGH */
	__u8 ready; /* 1: the timer has its callback */
	__u32 armed; /* 1: it runs, or is being set. Exchanged, since the programs and the timer run on any processor */
	__u8 told; /* 1: that nothing comes */
	__u8 zero[3];
};

/* From so many answers on it is known what is usual, and told where one is overdue. */
#define ANSWERS_ENOUGH 16

/* Map `settings`, one entry. */
struct settings {
	__u64 namespace_cookie; /* network namespace of this instance (SO_NETNS_COOKIE) */
	__u32 tunnel;		/* interface index of the TUN device; 0: none */
	__u32 mark;
	__u32 mark_mask;
	__u32 idle; /* enum idle: what need not be done now */
	__u32 control_port; /* what is said to it, of hosts behind this one, is for this host; 0: nothing is. See claim_fragment() */
	__u32 strict; /* 1: a device of this host filters by reverse paths strictly (RFC 3704 section 2.2) */
	__u16 drawn_first; /* the ports that the kernel draws from, */
	__u16 drawn_last;  /* 0: not known */
	__u32 home; /* the device of all of map `homes`, HOME_SEVERAL, or 0: it is empty */
};

/*
 * Attaching a program waits for all readers of the device's list (synchronize_rcu: tens of milliseconds). So programs
 * are attached ahead of a move, and cost next to nothing while these bits are set.
 */
enum idle {
	IDLE_TRANSLATION = 1,	/* no flow has moved or is held */
	IDLE_INTRODUCTIONS = 2, /* no introduction is expected */
	IDLE_VACATED = 4,	/* map `vacated` is empty */
	IDLE_LISTENING = 8,	/* no binding is CARRIER_LISTEN */
	IDLE_LAPSES = 16,	/* no flow waits, or has gone on after a lapse a moment ago */
	IDLE_HELPED = 32,	/* map `helped` is empty */
	IDLE_KEPT = 64,		/* map `kept` is empty */
	IDLE_ENDPOINTS = 128,	/* maps `lent` and `endpoints` are empty, and no flow is toward a namespace */
	IDLE_FORWARDED = 256,	/* no flow is toward another host */
	IDLE_UNCONNECTED = 512, /* no flow is HELD_UNCONNECTED */
	IDLE_DATAGRAMS = 1024,	/* the daemon does not want to know which remotes sockets of UDP send to */
	IDLE_TRAFFIC = 2048,	/* map `traffic` is empty */
};

/*
 * Map `vacated`: address (struct address) that a moved peer had on a link of this host -> interface index of that link.
 * Routes lead everything for it to the TUN device, or to where the peer is; what is of no moved flow belongs to whoever
 * has the address now.
 *
 * Map `kept`: address (struct address) of this host that is gone, and that its sockets go on using; the value is not
 * used. Routes may lead what is sent from it out of the host; what is of no moved flow does not go there.
 */

enum alias_kind {
	ALIAS_REACH = 1,     /* connect: where the peer that was at `address` is now */
	ALIAS_BIND = 2,	     /* bind: where this host is that was at `address` */
	ALIAS_SHOW_PEER = 3, /* getpeername, accept: where the peer that is at `address` was; of what came by ALIAS_BIND */
	ALIAS_SHOW_OWN = 4,  /* getsockname: where this host, at `address` now, was for the peer that is at `other`; of what
				was opened by ALIAS_REACH */
};

/* Map `aliases`: this -> the address that a program of this name is shown, or meant (struct address). */
struct alias {
	__u8 program[16]; /* as in /proc/PID/comm, zeros behind it */
	struct address address;
	struct address other;
	__u8 kind; /* enum alias_kind */
	__u8 zero[7];
};

/* Map `leased_ports`: cookie of a network namespace -> the ports that are on lease for it, a bit each. */
struct ports {
	__u64 words[65536 / 64];
};

enum fragment_direction {
	FRAGMENT_OUT = 0,
	FRAGMENT_IN = 1,
};

/* Map `fragments`: this, as found in the fragments of one packet before translation -> own tuple of the flow. */
struct fragment {
	struct address source;
	struct address destination;
	__u32 identification;
	__u8 protocol;
	__u8 direction; /* enum fragment_direction */
	__u8 zero[2];
};

/* Map `counters`: one for each verdict and each reason for it. */
enum counter {
	COUNTER_NATIVE_OUT,	     /* egress: a known flow that has not moved, passed */
	COUNTER_HOME_OUT,	     /* egress: moved, yet back under its own names, passed */
	COUNTER_REWRITTEN_OUT,	     /* egress: rewritten to the wire tuple */
	COUNTER_TUNNELLED_OUT,	     /* egress: handed to the TUN device */
	COUNTER_HELD,		     /* egress: binding or flow on hold */
	COUNTER_HELD_ALLOWANCE,	     /* egress: allowance towards an unproven locator used up (P-18) */
	COUNTER_HELD_FAMILY,	     /* egress: locators of another family, and no TUN device is set */
	COUNTER_HELD_NO_TUNNEL,	     /* egress: carrier is the tunnel and no TUN device is set */
	COUNTER_DROPPED_REWRITE,     /* egress: a kernel helper refused the rewriting */
	COUNTER_DROPPED_ROUTE,	     /* egress: on the TUN device, and no way out found */
	COUNTER_VACATED_OUT,	     /* egress: of no moved flow: sent to the vacated address's owner of today */
	COUNTER_ICMP_OUT,	     /* egress: ICMP error about a moved flow rewritten */
	COUNTER_DROPPED_ICMP_OUT,    /* egress: ICMP error about a moved flow that cannot be rewritten */
	COUNTER_FRAGMENT_OUT,	     /* egress: later fragment recognised by its first */
	COUNTER_REWRITTEN_IN,	     /* ingress: restored to the own tuple */
	COUNTER_HOME_IN,	     /* ingress: came under its own names, marked */
	COUNTER_DROPPED_RESTORE,     /* ingress: a kernel helper refused the rewriting */
	COUNTER_DROPPED_UNKNOWN,     /* egress: reset of what came between locators of moved flows, of no flow and no socket */
	COUNTER_DROPPED_RESET,	     /* ingress: reset of a moved flow that came neither rewritten nor by the tunnel */
	COUNTER_ICMP_IN,	     /* ingress: ICMP error restored */
	COUNTER_FRAGMENT_IN,	     /* ingress: later fragment recognised by its first */
	COUNTER_FRAGMENT_UNMATCHED,  /* ingress: later fragment between locators, first not seen, passed untouched */
	COUNTER_INTRODUCTION,	     /* ingress: introduction consumed and reported */
	COUNTER_INTRODUCTION_LOST,   /* ingress: introduction consumed, ring buffer full */
	COUNTER_TUNNEL_IN,	     /* TUN ingress: packet of the daemon marked */
	COUNTER_FLOW_EVENT_LOST,     /* tracker: ring buffer full */
	COUNTER_ANSWERED,	     /* egress: probe on hold, turned round as the absent peer's answer */
	COUNTER_STALE_ECHO,	     /* ingress: echo of a timestamp from before a lapse made a new one */
	COUNTER_HELPED,		     /* egress: handed to the daemon for a peer that is away */
	COUNTER_HELD_IN,	     /* ingress: of a helped flow whose peer has not been let in again yet */
	COUNTER_DROPPED_RENUMBER,    /* either way: numbers of a helped flow cannot be translated */
	COUNTER_REDIRECTED_OUT,	     /* egress: translated, and sent again to find its device and next hop */
	COUNTER_HELD_KEPT,	     /* egress: of no moved flow, from an address that this host no longer has */
	COUNTER_CLAIMED,	     /* ingress: SYN of somebody else under the names of a moved flow, refused or dropped */
	COUNTER_ENDPOINT_IN,	     /* put into an endpoint namespace */
	COUNTER_ENDPOINT_OUT,	     /* from an endpoint namespace, sent by routes under its own names */
	COUNTER_ENDPOINT_HOME,	     /* from an endpoint namespace to this host's own stack */
	COUNTER_DROPPED_ENDPOINT,    /* from an endpoint namespace: of no flow, not lent, or under another address */
	COUNTER_LEASED_OUT,	     /* of no flow, handed to the TUN device for who has the end on lease, or lent it */
	COUNTER_FORWARDED,	     /* for a host behind this one, sent by routes */
	COUNTER_EXPIRED,	     /* forwarded, hop limit used up */
	COUNTER_TOO_LONG,	     /* sent by routes, and longer than the link takes */
	COUNTER_SET_ASIDE,	     /* for a socket that is being moved, handed to the daemon */
	COUNTER_INTRODUCTION_EXCESS, /* ingress: introduction consumed, more than its index may bring (P-142) */
	COUNTER_TAKEN_IN, /* ingress: under the wire names of a moved flow, and left to the native connection that has them */
	COUNTER_TAKEN_OUT, /* egress: of a moved flow whose wire names a native connection has, so by the tunnel */
	COUNTER_DROPPED_ASTRAY,	     /* ingress: of a moved flow, by a device that a strict reverse path filter would not let it come by */
	COUNTER_DROPPED_NAMES,	     /* egress: of no flow, and under the wire names of one */
	COUNTER_LED_HOME, /* egress: of a flow that has not moved, led by another network, and sent by its own */
	COUNTER_MAX,
};

enum event_kind {
	EVENT_INTRODUCTION = 1,
	EVENT_FLOW_OPENED = 2, /* `index`: the user whose socket it is */
	EVENT_FLOW_CLOSED = 3,
	EVENT_HEARD_NATIVELY = 4,
	EVENT_FLOW_STALLED = 5, /* `index`: how often the same was sent again, so far */
	EVENT_ACKNOWLEDGED = 6, /* what the peer has of what was kept for it: `acknowledgement`, and its window in `index` */
	EVENT_CLAIMED = 7, /* somebody else opens a connection under the names of a moved flow */
	EVENT_FLOW_OPENING = 8, /* a socket begins to connect; it has no local port yet */
	/* A socket of UDP, of the user `index` and with the cookie `nonce`, sends where it has not sent of late. */
	EVENT_DATAGRAM_SENT = 9,
	EVENT_STILL_THERE = 10, /* something came natively in a moved flow that its peer has named late (P-206) */
	/* Between the addresses of `tuple`: nothing comes, and usually something does. `index`: for so many microseconds. */
	EVENT_OVERDUE = 11,
	EVENT_GREETED = 12, /* the far end runs Whimbrel, it says; `index`: which ends are behind a NAT (greeted_end) */
};

/* Which ends of a connection have other names at the other one: bits. */
enum greeted_end {
	GREETED_NEAR = 1,
	GREETED_FAR = 2,
};

enum event_origin {
	ORIGIN_UNKNOWN = 0,
	ORIGIN_CONNECTED = 1,
	ORIGIN_ACCEPTED = 2,
};

/* How many of something there were of late. In map `introduction_indices`: introductions for a session index. */
struct share {
	__u64 since; /* bpf_ktime_get_ns */
	__u32 used;
	__u32 zero;
};

#define SHARE_PERIOD 250000000ULL /* ns */
/* Twice what a peer introduces in a period (P-15), since it repeats what is lost; and while more waits than is read. */
#define SHARE_MOST 1024
#define SHARE_WHEN_BUSY 16

/* Map `sent`: own tuple -> who sends so, and that the daemon was told. */
struct sent {
	__u64 cookie; /* of the socket (SO_COOKIE) */
	__u32 user;
	__u32 at; /* when it last did, within about a second; as `tunnelled_until` */
};

/* One record of the ring buffers `events` and `arrivals`. */
struct event {
	struct flow_tuple tuple; /* for an introduction: as seen, destination = local */
	__u32 kind;		 /* enum event_kind */
	__u32 origin;		 /* enum event_origin; flow opened, and datagram sent: whether by a connected socket */
	__u64 nonce;		 /* introduction only, as are the rest */
	__u32 index;
	__u32 sequence;
	__u32 acknowledgement;
	__u32 interface; /* where it came in */
};

/* One record that the socket iterator writes. */
struct socket_record {
	struct flow_tuple tuple;
	__u64 inode; /* 0: no process holds the socket any more */
	__u64 acknowledged; /* bytes, since it was opened */
	__u64 received;
	__u32 state; /* TCP_* of linux/tcp.h; 0: no such socket is connected */
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 rcv_nxt;
	__u32 snd_wnd;
	__u32 mss_cache;
	__u32 pmtu_cookie;
	__u32 bound_interface;
	__u32 uid;
	__u8 backoff;
	__u8 retransmits;
	__u8 reports_errors; /* 1: IP_RECVERR or IPV6_RECVERR */
	__u8 repairs;	     /* 1: takes some of what it sent for lost */
	__u32 write_seq;     /* one more than the last that its program wrote */
	__u8 window_scale;   /* bits that the peer's window is to be shifted by */
	__u8 unordered;	     /* 1: something came that is not next in the stream */
	__u8 receives;	     /* 1: data came of late */
	__u8 stands_still;   /* 1: was answered in a back-off, and sends nothing for it */
	__u32 heard; /* segments that came */
	__u32 round_trip; /* microseconds, smoothed; 0: not measured yet */
	__u32 window;	  /* congestion window in segments; where the kernel takes some for lost, that before if it was more */
	__u32 threshold;  /* slow start threshold in segments, 0: none; where some is taken for lost, the same as `window` */
	__u32 least_round_trip; /* microseconds, of the last minutes; all bits set: not measured yet */
	__u32 sends; /* 1: some of what its program wrote is not acknowledged */
	__u32 sent_again; /* segments, since it was opened */
	__u32 zero;
};

/*
 * What the sender of one connection comes back to, or, where nothing is known of where it is, what it had where it was
 * (windows.bpf.c).
 */
struct resumption {
	__u64 since;	 /* microseconds of CLOCK_MONOTONIC: what was sent before went another way */
	__u32 window;	 /* bytes: with which it goes on at once */
	__u32 most;	 /* bytes: what it had there */
	__u32 threshold; /* bytes: slow start threshold; all bits set: none */
	__u32 least;	 /* microseconds: least round trip there */
	__u32 smoothed;	 /* microseconds */
	__u32 unknown;	 /* 1: nothing is known of where it is */
};

/* How many `look_up_sockets` looks up at once. */
#define LOOKED_UP_AT_ONCE 128

/* What it is told. */
struct sockets_wanted {
	__u32 count;
	__u32 lapsed; /* 1: their flows go on after a lapse (lib/lapse.h) */
};

/* What `find_socket` tells of one. */
struct socket_position {
	__u32 snd_una;
	__u32 rcv_nxt;
	__u32 snd_up; /* behind the last urgent byte that was sent; snd_una at the most where that is acknowledged */
};

/* One byte of these for each socket that `fit_sockets` shows. */
enum fitted {
	FITTED_CHANGED = 1,
	FITTED_WAITING = 2, /* no longer parked, and its options cannot be put back yet */
};

/*
 * Introduction segment (docs/protocol.md section 4). TCP: option kind, length, ExID, index, nonce. UDP: the whole
 * datagram is the prefix, index, nonce.
 */
#define INTRODUCTION_OPTION_KIND 253
#define INTRODUCTION_OPTION_LENGTH 16
#define INTRODUCTION_EXID 0x5742
#define INTRODUCTION_DATAGRAM_LENGTH 20

#endif
