/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Wire names that are somebody else's. A moved flow is rewritten to names that its peer has a say in, and whoever
 * shares a NAT with others could say one of theirs. What a native connection of this host is called no moved flow is
 * called (P-140): so the sockets are asked before a packet is renamed, in either direction.
 */
#ifndef WHIMBREL_TAKEN_H
#define WHIMBREL_TAKEN_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "connection.h"
#include "helped.h"
#include "parse.h"
#include "verdict.h"

/*
 * Who asks. Wherever a flow's local end is, its wire names are of this host's own address (P-137), and so those of its
 * sockets.
 */
enum asked {
	ASKED_BY_FLOW = 0, /* nothing came in: a moved flow is about to bear the names */
	ASKED_BY_SEGMENT = 1, /* the packet came in under them */
	ASKED_BY_ERROR = 2, /* the packet left under them, and an ICMP error quotes it */
};

/*
 * The little that is read of a socket that a handshake has got halfway. The loader finds the offset in the kernel's
 * BTF.
 */
struct tcp_request_sock {
	__u32 snt_isn;
} __attribute__((preserve_access_index));

/* Too much for the stack beside everything else. Programs on tc are not interrupted by one another. */
struct inquiry {
	struct flow_tuple names;
	struct bpf_sock_tuple tuple;
	__u8 request[1024]; /* a copy of the beginning of a request socket, which takes about 350 bytes on Linux 6.18 */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct inquiry);
} inquiries SEC(".maps");

static __always_inline struct inquiry *get_inquiry(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&inquiries, &zero);
}

/*
 * The sequence number that a request socket has begun with. Helpers that would give its type do not know those of
 * listeners of MPTCP (net/mptcp/subflow.c, tcp_prot_override), so it is copied up to there.
 */
static __always_inline bool read_first_number(struct inquiry *inquiry, struct bpf_sock *socket, __u32 *number)
{
	__u32 offset = bpf_core_field_offset(struct tcp_request_sock, snt_isn);

	if (offset > sizeof(inquiry->request) - sizeof(*number) ||
	    bpf_probe_read_kernel(inquiry->request, offset + sizeof(*number), socket))
		return false;
	__builtin_memcpy(number, inquiry->request + offset, sizeof(*number));
	return true;
}

/*
 * Is a segment of a handshake that this socket is in the midst of? Anybody can send a first segment in another's name,
 * so the names alone say nothing: who is at the other end has seen what the socket sent, and acknowledges it.
 */
static __noinline bool is_of_handshake(struct __sk_buff *skb, const struct packet *packet, struct inquiry *inquiry,
				       struct bpf_sock *socket, __u32 asked)
{
	__u32 state = socket->state, first, next, number;
	__be32 words[4]; /* up to the flags */

	if (!(asked & (ASKED_BY_SEGMENT | ASKED_BY_ERROR)))
		/* A program of this host has begun it. */
		return state == BPF_TCP_SYN_SENT;
	if (state == BPF_TCP_NEW_SYN_RECV) {
		if (!read_first_number(inquiry, socket, &first))
			return true;
		next = first + 1;
	} else {
		struct bpf_tcp_sock *tcp = bpf_tcp_sock(socket);

		if (!tcp)
			return true;
		/* With Fast Open there is a whole socket already, past its own SYN. */
		first = state == BPF_TCP_SYN_RECV ? tcp->snd_una - 1 : tcp->snd_una;
		next = tcp->snd_nxt;
	}
	if (asked & ASKED_BY_ERROR) {
		if (bpf_skb_load_bytes(skb, packet->transport, words, 8))
			return false;
		number = bpf_ntohl(words[1]);
	} else {
		if (bpf_skb_load_bytes(skb, packet->transport, words, sizeof(words)) ||
		    !(bpf_ntohl(words[3]) & FLAG_ACK))
			return false;
		number = bpf_ntohl(words[2]) - 1;
	}
	return number - first < next - first;
}

/* Does a socket of this network namespace have these names, or would it take what comes under them? */
static __noinline bool has_names(struct __sk_buff *skb, const struct packet *packet, struct inquiry *inquiry,
				 __u64 namespace, __u32 asked)
{
	__u32 size = name_socket(&inquiry->tuple, &inquiry->names);
	struct bpf_sock *socket;
	bool has;

	if (inquiry->names.transport == IPPROTO_UDP) {
		socket = bpf_sk_lookup_udp(skb, &inquiry->tuple, size, namespace, 0);
		if (!socket)
			return false;
		has = true;
	} else {
		socket = bpf_skc_lookup_tcp(skb, &inquiry->tuple, size, namespace, 0);
		if (!socket)
			return false;
		switch (socket->state) {
		case BPF_TCP_LISTEN:
			has = asked & ASKED_BY_SEGMENT && answers_cookie(skb, packet, socket);
			break;
		case BPF_TCP_SYN_SENT:
		case BPF_TCP_SYN_RECV:
		case BPF_TCP_NEW_SYN_RECV:
			has = is_of_handshake(skb, packet, inquiry, socket, asked);
			break;
		case BPF_TCP_TIME_WAIT:
		case BPF_TCP_CLOSE:
			has = false;
			break;
		default:
			has = true;
		}
	}
	bpf_sk_release(socket);
	return has;
}

/* Has it moved away from its own names? */
static __always_inline bool has_left(const struct flow_entry *flow)
{
	const struct binding *binding = bpf_map_lookup_elem(&bindings, &flow->binding);

	return binding && binding->carrier != CARRIER_NATIVE && has_moved(flow, binding);
}

/* Are these the names of something native? */
static __noinline bool is_taken(struct __sk_buff *skb, const struct packet *packet, struct inquiry *inquiry,
				__u32 asked)
{
	const struct flow_tuple *names = &inquiry->names;
	const struct settings *settings = get_settings();
	const struct endpoint *endpoint;
	const struct flow_entry *flow;
	const struct lent *lent;
	__u32 interface;

	if (!settings)
		return true;
	if (has_names(skb, packet, inquiry, BPF_F_CURRENT_NETNS, asked)) {
		/* Of two hosts that have changed places each may have the other's former names. */
		flow = find_flow(names);
		return !flow || !has_left(flow);
	}
	if ((settings->idle & (IDLE_DELIVERY | IDLE_HELPED)) == (IDLE_DELIVERY | IDLE_HELPED))
		return false;
	flow = find_flow(names);
	if (flow)
		return flow->delivery && !has_left(flow);
	/* Of a socket that is being moved the kernel knows nothing for a moment. */
	if (rests(skb, names))
		return true;
	if (settings->idle & IDLE_ENDPOINTS)
		return false;
	lent = find_lent(&names->local, names->local_port, names->transport);
	if (!lent)
		return false;
	interface = lent->delivery;
	endpoint = bpf_map_lookup_elem(&endpoints, &interface);
	/* What another host has on lease this one cannot look into, and it is that host's own. */
	if (!endpoint)
		return true;
	/* So it is of a namespace that cannot be looked into. */
	return endpoint->namespace == NAMESPACE_UNKNOWN ||
	       has_names(skb, packet, inquiry, endpoint->namespace, asked);
}

/*
 * For so long, in ms, what was found of the names of a datagram holds while the daemon keeps their port. It may be
 * killed, and with it goes the socket that keeps it.
 */
#define FREE_FOR 1000

/*
 * Have the names that a moved flow bears between its binding's locators been found to be nobody's a moment ago?
 *
 * For TCP that holds for a tick of the coarse clock. Who opens a connection under these names meanwhile has drawn its
 * numbers by lot, and what the flow sends is outside of its window. A datagram has no numbers: where anybody may come
 * to have its port it is asked for each.
 */
static __always_inline bool were_free(__u8 protocol, const struct flow_entry *flow, const struct binding *binding,
				      __u32 now)
{
	if (flow->free_between != binding->locators)
		return false;
	if (protocol == IPPROTO_TCP)
		return flow->free_at == now;
	return binding->names_kept && now - flow->free_at < FREE_FOR;
}

static __always_inline void note_free(struct flow_entry *flow, const struct binding *binding, __u32 now)
{
	flow->free_at = now;
	flow->free_between = binding->locators;
}

/* Are the names taken that a moved flow would bear? Of what `packet` is only the protocol counts. */
__noinline bool are_names_taken(struct __sk_buff *skb, const struct packet *packet, struct flow_entry *flow,
				const struct binding *binding)
{
	struct inquiry *inquiry = get_inquiry();
	struct flow_tuple *names;
	__u32 now;

	if (!packet || !flow || !binding || !inquiry)
		return true;
	now = bpf_ktime_get_coarse_ns() / 1000000;
	if (were_free(packet->protocol, flow, binding, now))
		return false;
	names = &inquiry->names;
	names->local = binding->local;
	names->remote = binding->peer;
	names->local_port = flow->wire_local_port;
	names->remote_port = flow->wire_remote_port;
	names->transport = packet->protocol;
	if (is_taken(skb, packet, inquiry, ASKED_BY_FLOW))
		return true;
	note_free(flow, binding, now);
	return false;
}

enum between {
	BETWEEN_OTHERS = 0,
	BETWEEN_LOCATORS = 1,
	BETWEEN_WIRE_PORTS = 2, /* of a flow */
};

/* Where does a packet go that leaves under its own names? One look for all but what goes to a peer's locator. */
static __noinline enum between find_between(const struct packet *packet)
{
	const struct locator *locator = find_locator(&packet->destination, &packet->source);

	if (!locator || packet->part == FRAGMENT_LATER)
		return BETWEEN_OTHERS;
	return find_own(locator->binding, packet->protocol, packet->source_port, packet->destination_port) ?
		       BETWEEN_WIRE_PORTS :
		       BETWEEN_LOCATORS;
}

/*
 * What leaves, and is of no flow.
 *
 * The far end would take what bears the wire names of a flow for that flow's. The daemon keeps the wire ports of UDP
 * from other sockets (P-160), so such a datagram is from who gives it another source than his socket's, or from whom
 * this host forwards for. A connection of TCP that has these names has them at the far end as well, and whatever begins
 * one is of no flow there.
 *
 * The peer may know a flow more than this host does, where a daemon died in the middle of an introduction. The reset by
 * which the stack answers would end it (P-43); it is one without an acknowledgement, and no packet that was forwarded.
 */
__noinline int leave_natively(struct __sk_buff *skb, const struct packet *packet)
{
	struct inquiry *inquiry = get_inquiry();
	struct flow_tuple *names;
	enum between between;
	__u8 flags = 0;

	if (!packet || !inquiry)
		return pass();
	between = find_between(packet);
	if (between == BETWEEN_OTHERS)
		return pass();
	if (packet->protocol == IPPROTO_UDP)
		return between == BETWEEN_WIRE_PORTS ? drop(COUNTER_DROPPED_NAMES) : pass();
	if (bpf_skb_load_bytes(skb, packet->transport + TCP_FLAGS, &flags, 1) || flags & TCP_SYN)
		return pass();
	if (between == BETWEEN_LOCATORS && ((flags & (TCP_RST | TCP_ACK)) != TCP_RST || skb->ingress_ifindex))
		return pass();
	names = &inquiry->names;
	names->local = packet->source;
	names->remote = packet->destination;
	names->local_port = packet->source_port;
	names->remote_port = packet->destination_port;
	names->transport = packet->protocol;
	if (is_taken(skb, packet, inquiry, ASKED_BY_FLOW))
		return pass();
	return drop(between == BETWEEN_WIRE_PORTS ? COUNTER_DROPPED_NAMES : COUNTER_DROPPED_UNKNOWN);
}

/* Is what came in, under the wire names of a flow, of something native all the same? */
__noinline bool came_natively(struct __sk_buff *skb, const struct packet *packet)
{
	struct inquiry *inquiry = get_inquiry();

	if (!packet || !inquiry)
		return true;
	name_inbound(&inquiry->names, packet);
	return is_taken(skb, packet, inquiry, ASKED_BY_SEGMENT);
}

/* The same of what left, and is quoted. */
__noinline bool left_natively(struct __sk_buff *skb, const struct packet *quoted)
{
	struct inquiry *inquiry = get_inquiry();
	struct flow_tuple *names;

	if (!quoted || !inquiry)
		return true;
	names = &inquiry->names;
	names->local = quoted->source;
	names->remote = quoted->destination;
	names->local_port = quoted->source_port;
	names->remote_port = quoted->destination_port;
	names->transport = quoted->protocol;
	return is_taken(skb, quoted, inquiry, ASKED_BY_ERROR);
}

#endif
