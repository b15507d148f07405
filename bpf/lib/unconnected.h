/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sockets of UDP: what those send that are not connected, wherever this host is; and which remotes any of them sends
 * to, which is how the daemon learns of flows of UDP (docs/decisions/0099-where-datagrams-are-seen.md).
 */
#ifndef WHIMBREL_UNCONNECTED_H
#define WHIMBREL_UNCONNECTED_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "address.h"
#include "parse.h"
#include "rewrite.h"

static __always_inline void note_use(struct flow_entry *flow)
{
	__u32 now = bpf_ktime_get_coarse_ns() / 1000000;

	if (flow->held & HELD_UNCONNECTED && flow->sent != now)
		flow->sent = now;
}

/*
 * What a socket sends that is bound to no address leaves, once this host has moved, from its new one. The flow that it
 * is of then (P-222), and in `own` its names: the program goes on hearing and being heard under those with which it
 * began. While this host is where the flow began the kernel's choice is the program's.
 */
static __always_inline struct flow_entry *find_unconnected(const struct packet *packet, struct flow_tuple *own)
{
	const struct binding *binding;
	const struct address *local;
	struct flow_entry *flow;
	__u32 zero = 0;
	void *table = bpf_map_lookup_elem(&unconnected, &zero);

	if (!table)
		return NULL;
	if (packet->family == 6)
		__builtin_memset(&own->local, 0, sizeof(own->local));
	own->local.words[3] = 0;
	local = bpf_map_lookup_elem(table, own);
	if (local) {
		own->local = *local;
		flow = find_flow(own);
		binding = flow ? bpf_map_lookup_elem(&bindings, &flow->binding) : NULL;
		if (binding && binding->carrier != CARRIER_NATIVE && flow->home_local_place != binding->local_place)
			return flow;
	}
	own->local = packet->source;
	return NULL;
}

/* Gives a datagram that find_unconnected() knows its flow's own address. False: drop it. */
static __noinline bool rename_source(struct __sk_buff *skb, const struct packet *packet, const struct flow_tuple *own)
{
	struct names names = {};

	if (!packet || !own)
		return false;
	names.source = own->local;
	names.destination = packet->destination;
	names.source_port = packet->source_port;
	names.destination_port = packet->destination_port;
	return rename_packet(skb, packet, &names);
}

/*
 * Whether a datagram of these names was looked at a moment ago. To look up a flow or a remote costs several times as
 * much as all the rest, and busy sockets send to few. Each has its place, where it replaces whatever was there.
 */
struct recent {
	__u64 names; /* hashed */
	__u64 period; /* of RECENT_SHIFT */
};

#define RECENTS_BITS 10
/* About a second, in ns. */
#define RECENT_SHIFT 30

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << RECENTS_BITS);
	__type(key, __u32);
	__type(value, struct recent);
} recents SEC(".maps");

/*
 * Remotes that sockets have been told to send to, and that the daemon was told of. Those that were not sent to for the
 * longest time make room.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct flow_tuple);
	__type(value, struct sent);
} sent SEC(".maps");

/*
 * How many remotes are told of in a period: of sockets by their cookies, several of which may share, and of all. What a
 * socket with more has to say is said later, if it still sends; it costs no more than to look.
 */
#define REMOTES_OF_SOCKET 32
#define REMOTES_OF_ALL 256
#define SHARES_OF_SOCKETS 256
/* And of how many the daemon is told at once. The others wait for its timer. */
#define REMOTES_AT_ONCE 16

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SHARES_OF_SOCKETS + 1);
	__type(key, __u32);
	__type(value, struct share);
} remote_shares SEC(".maps");

static __always_inline __u64 mix(__u64 names, __u64 more)
{
	names = (names ^ more) * 0x9e3779b97f4a7c15ULL;
	return names ^ names >> 32;
}

static __always_inline bool was_seen(__u64 names)
{
	__u64 period = bpf_ktime_get_coarse_ns() >> RECENT_SHIFT;
	__u32 place = names & ((1 << RECENTS_BITS) - 1);
	struct recent *recent = bpf_map_lookup_elem(&recents, &place);

	if (!recent || (recent->names == names && recent->period == period))
		return true;
	recent->names = names;
	recent->period = period;
	return false;
}

/* Nobody who moves is reached there, or is alone there. */
static __always_inline bool is_of_no_host(const struct address *remote)
{
	__u32 first = bpf_ntohl(is_ipv4(remote) ? remote->words[3] : remote->words[0]);

	if (is_ipv4(remote))
		/* RFC 1122 section 3.2.1.3, RFC 5771. */
		return first >> 24 == 127 || first >> 28 >= 0xe || !first;
	/* RFC 4291 sections 2.5 and 2.7. */
	return first >> 24 == 0xff || first >> 22 == 0xfe80 >> 6 ||
	       (!remote->words[0] && !remote->words[1] && !remote->words[2]);
}

#define FIRST_UNPRIVILEGED 1024

/* Tells of a remote that a socket sends to, unless too many are told of. */
static __always_inline void report_sent(const struct flow_tuple *own, const struct sent *to, bool connected)
{
	__u32 of_socket = to->cookie % SHARES_OF_SOCKETS, of_all = SHARES_OF_SOCKETS;
	struct share *socket = bpf_map_lookup_elem(&remote_shares, &of_socket);
	struct share *all = bpf_map_lookup_elem(&remote_shares, &of_all);
	struct event *event;

	if (!socket || !all || !take_share(socket, REMOTES_OF_SOCKET) || !take_share(all, REMOTES_OF_ALL))
		return;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count(COUNTER_FLOW_EVENT_LOST);
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->tuple = *own;
	event->kind = EVENT_DATAGRAM_SENT;
	event->origin = connected ? ORIGIN_CONNECTED : ORIGIN_UNKNOWN;
	event->nonce = to->cookie;
	event->index = to->user;
	bpf_ringbuf_submit(event, all->used <= REMOTES_AT_ONCE ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
	bpf_map_update_elem(&sent, own, to, BPF_ANY);
}

/* May a socket that is not connected have been asked for what it sends? Then it introduces nothing by it (P-225). */
static __always_inline bool may_answer(const struct settings *settings, const struct flow_tuple *own)
{
	__u16 port = bpf_ntohs(own->local_port);

	return settings->drawn_last && (port < settings->drawn_first || port > settings->drawn_last) &&
	       bpf_ntohs(own->remote_port) >= FIRST_UNPRIVILEGED && own->remote_port != own->local_port;
}

/*
 * A datagram that a socket of this host sends, before anything is done to it. Of a known flow the time is noted. The
 * daemon is told of a remote to which the socket has not sent before.
 */
__noinline int note_datagram(struct __sk_buff *skb, __u32 network)
{
	const struct settings *settings = get_settings();
	struct bpf_sock *socket = skb->sk;
	struct packet packet = {};
	struct flow_tuple own = {};
	struct sent to = {}, *known;
	struct flow_entry *flow;
	bool connected;

	socket = socket ? bpf_sk_fullsock(socket) : NULL;
	if (!settings || !socket || socket->protocol != IPPROTO_UDP)
		return 0;
	connected = socket->state == BPF_TCP_ESTABLISHED;
	if (!parse(skb, network, skb->protocol, &packet) || packet.protocol != IPPROTO_UDP ||
	    packet.part == FRAGMENT_LATER)
		return 0;
	/* What a tunnel has made of it bears the socket of what is in it. */
	if (socket->src_port != bpf_ntohs(packet.source_port))
		return 0;
	own.local = packet.source;
	own.remote = packet.destination;
	own.local_port = packet.source_port;
	own.remote_port = packet.destination_port;
	own.transport = IPPROTO_UDP;
	if (is_of_no_host(&own.remote))
		return 0;
	flow = find_flow(&own);
	if (!flow && !(settings->idle & IDLE_UNCONNECTED))
		flow = find_unconnected(&packet, &own);
	if (flow) {
		/* What goes to somebody else does not keep it. */
		if (!(flow->conflict & CONFLICT_NATIVE))
			note_use(flow);
		return 0;
	}
	if (!connected && may_answer(settings, &own))
		return 0;
	to.cookie = bpf_get_socket_cookie(skb);
	to.user = bpf_get_socket_uid(skb);
	to.at = bpf_ktime_get_coarse_ns() / 1000000;
	known = bpf_map_lookup_elem(&sent, &own);
	if (known && known->cookie == to.cookie)
		known->at = to.at;
	else
		report_sent(&own, &to, connected);
	return 0;
}

/*
 * One look for all that is not of UDP, and two for what goes where something just went. The names are read here, and
 * not by parse(), for their hash alone. Behind extension headers there are none but of what is sent in fragments.
 */
static __always_inline void look_for_datagram(struct __sk_buff *skb, __u32 network)
{
	__u64 names = 0;

	if (!skb->sk)
		return;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ip = peek(skb, network, sizeof(*ip) + sizeof(__u32));

		if (!ip || ip->protocol != IPPROTO_UDP || ip->frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
			return;
		if (ip->ihl == 5) {
			names = mix(0, (__u64)ip->saddr << 32 | ip->daddr);
			names = mix(names, *(const __u32 *)(ip + 1));
		}
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ip = peek(skb, network, sizeof(*ip) + sizeof(__u32));

		if (!ip || (ip->nexthdr != IPPROTO_UDP && ip->nexthdr != IPPROTO_FRAGMENT))
			return;
		if (ip->nexthdr == IPPROTO_UDP) {
			const __u32 *words = (const __u32 *)&ip->saddr;

#pragma unroll
			for (int i = 0; i < 8; i += 2)
				names = mix(names, (__u64)words[i] << 32 | words[i + 1]);
			names = mix(names, *(const __u32 *)(ip + 1));
		}
	} else {
		return;
	}
	if (!names || !was_seen(names))
		note_datagram(skb, network);
}

#endif
