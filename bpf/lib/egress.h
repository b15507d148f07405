/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From the own tuple to what its binding says: nothing, the wire tuple, the TUN device, or waiting. */
#ifndef WHIMBREL_EGRESS_H
#define WHIMBREL_EGRESS_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "answer.h"
#include "helped.h"
#include "parse.h"
#include "rewrite.h"
#include "taken.h"
#include "traffic.h"
#include "unconnected.h"
#include "verdict.h"

/*
 * Could the routes have led a packet of a flow that has not moved by another network than its own? They do between the
 * moment that a network comes and the one in which the daemon knows of it (decision 0120). Who marks packets has them
 * go by routes of his own.
 */
static __always_inline bool may_stray(const struct __sk_buff *skb, const struct settings *settings)
{
	return settings->home && settings->home != skb->ifindex && skb->ifindex != settings->tunnel &&
	       !skb->ingress_ifindex && skb->tc_index != LED_HOME && !(skb->mark & ~settings->mark_mask);
}

/* By where what is sent natively between the packet's addresses leaves, where that is not the way that it goes. */
static __always_inline const struct home *find_home(const struct __sk_buff *skb, const struct packet *packet)
{
	struct locator_pair pair;
	const struct home *home;

	pair.peer = packet->destination;
	pair.local = packet->source;
	home = bpf_map_lookup_elem(&homes, &pair);
	return home && home->interface != skb->ifindex ? home : NULL;
}

__noinline int strays(struct __sk_buff *skb, const struct packet *packet)
{
	return packet && find_home(skb, packet) ? 1 : 0;
}

/*
 * A network that the flow is not at home at would give it another name, or reset it. The routes have no say here: they
 * have just led elsewhere.
 */
__noinline int lead_home(struct __sk_buff *skb, const struct packet *packet)
{
	struct bpf_redir_neigh next_hop = {};
	const struct home *home = packet ? find_home(skb, packet) : NULL;

	if (!packet || !home)
		return pass();
	if (is_ipv4(&home->next_hop)) {
		next_hop.nh_family = 2; /* AF_INET */
		next_hop.ipv4_nh = home->next_hop.words[3];
	} else {
		next_hop.nh_family = 10; /* AF_INET6 */
		__builtin_memcpy(next_hop.ipv6_nh, &home->next_hop, 16);
	}
	if (!packet->network && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return drop(COUNTER_DROPPED_ROUTE);
	skb->tc_index = LED_HOME;
	count(COUNTER_LED_HOME);
	return bpf_redirect_neigh(home->interface, &next_hop, sizeof(next_hop), 0);
}

/* The same while no flow has moved, so that each that is known is at home. */
__noinline int egress_at_home(struct __sk_buff *skb, const struct packet *packet)
{
	struct flow_tuple own = {};

	if (!packet || packet->part == FRAGMENT_LATER || !strays(skb, packet))
		return pass();
	own.local = packet->source;
	own.remote = packet->destination;
	own.local_port = packet->source_port;
	own.remote_port = packet->destination_port;
	own.transport = packet->protocol;
	return find_flow(&own) ? lead_home(skb, packet) : pass();
}

/* What carries this moved flow: a binding that follows looks at what the flow was heard by. */
static __always_inline __u8 carrier_of(const struct flow_entry *flow, const struct binding *binding)
{
	if (flow->held & HELD_TUNNELLED && (binding->carrier == CARRIER_REWRITE || binding->carrier == CARRIER_FOLLOW) &&
	    (__s32)(flow->tunnelled_until - (__u32)(bpf_ktime_get_coarse_ns() / 1000000)) > 0)
		return CARRIER_TUNNEL;
	if (binding->carrier != CARRIER_FOLLOW)
		return binding->carrier;
	return flow->heard_local_place == binding->local_place && flow->heard_peer_place == binding->peer_place ?
		       CARRIER_REWRITE :
		       CARRIER_TUNNEL;
}

/* May `length` more bytes go to the peer's locator (P-18)? Counts them if so. */
static __always_inline bool take_allowance(struct binding *binding, __u64 length)
{
	__u64 before;

	if (binding->allowance == ALLOWANCE_UNLIMITED)
		return true;
	/* Bit 63 set: somebody else took the last of it and has not put it back yet. */
	before = __sync_fetch_and_sub(&binding->allowance, length);
	if (before >= length && !(before >> 63))
		return true;
	__sync_fetch_and_add(&binding->allowance, length);
	return false;
}

static __always_inline void fragment_key(struct fragment *key, const struct packet *packet, __u8 direction)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->source = packet->source;
	key->destination = packet->destination;
	key->identification = packet->identification;
	key->protocol = packet->protocol;
	key->direction = direction;
}

static __always_inline void wire_names_out(struct names *names, const struct flow_entry *flow,
					   const struct binding *binding)
{
	names->source = binding->local;
	names->destination = binding->peer;
	names->source_port = flow->wire_local_port;
	names->destination_port = flow->wire_remote_port;
}

/*
 * By which device a host behind this one sends, as the routing table has it. To ask costs as much as all the rest, so
 * what was found is relied on for a while, as a next hop is.
 */
struct side {
	struct address host;
	__u64 until;	 /* CLOCK_MONOTONIC, ns */
	__u32 interface; /* 0: none */
	__u32 zero;
};

#define SIDES 64

/* Each host has its place, where it replaces whatever was there. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SIDES);
	__type(key, __u32);
	__type(value, struct side);
} sides SEC(".maps");

/*
 * The device by which packets to the flow's local end leave: what comes in by another is somebody else's, who says that
 * he is that host.
 */
static __noinline bool comes_from_side_of(struct __sk_buff *skb, const struct flow_tuple *own)
{
	struct bpf_fib_lookup fib = {};
	struct side *side;
	__u32 place, came;
	long found;

	if (!own)
		return false;
	came = skb->ifindex;
	place = ((own->local.words[3] + 3 * own->local.words[2]) * 0x9e3779b1U) >> 26;
	side = bpf_map_lookup_elem(&sides, &place);
	if (!side)
		return false;
	if (side->until > bpf_ktime_get_coarse_ns() && same_address(&side->host, &own->local))
		return side->interface == came;
	found = find_way(skb, &fib, own->transport, &own->remote, &own->local);
	side->host = own->local;
	side->interface = found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH ? fib.ifindex : 0;
	side->until = bpf_ktime_get_coarse_ns() + NEIGHBOUR_NS;
	return side->interface == came;
}

/* May a packet that is not from this host's own stack be of this flow? */
static __always_inline bool comes_from(struct __sk_buff *skb, const struct packet *packet, const struct flow_entry *flow,
				       const struct flow_tuple *own)
{
	if (packet->origin == FROM_ENDPOINT)
		return flow->delivery == skb->ifindex;
	if (packet->origin == FROM_WIRE && flow->delivery == DELIVERY_PASSING)
		return comes_from_side_of(skb, own);
	return packet->origin == FROM_STACK || flow->delivery == DELIVERY_ROUTES;
}

#define TCP_HEADER_WORDS 4
#define TCP_FIN_BIT 0x00010000

/*
 * Where in its stream a host behind this one is that waits for an answer: what it sent last, again and again, it has
 * not been acknowledged (RFC 9293 section 3.8.1). The daemon has it try at once when there is a way again.
 */
__noinline int note_sent(struct __sk_buff *skb, const struct packet *packet, struct flow_entry *flow)
{
	__be32 header[TCP_HEADER_WORDS];
	__u32 word, sequence;

	if (!packet || !flow || packet->protocol != IPPROTO_TCP || packet->part == FRAGMENT_LATER ||
	    bpf_skb_load_bytes(skb, packet->transport, header, sizeof(header)))
		return 0;
	word = bpf_ntohl(header[3]);
	/* An acknowledgement is not waited for. */
	if (packet->end && packet->end <= packet->transport + (word >> 28) * 4 && !(word & TCP_FIN_BIT))
		return 0;
	sequence = bpf_ntohl(header[1]);
	if (flow->sent != sequence)
		flow->sent = sequence;
	return 0;
}

/* A flow's packet that needs nothing. From a namespace it has still to be sent; what comes in goes on as it would. */
static __always_inline int pass_native(const struct packet *packet)
{
	return packet->origin == FROM_ENDPOINT ? TO_BE_ROUTED : pass();
}

/*
 * Does it end its connection at once? A gateway says so by the tunnel for a host behind it: while the gateway is
 * started anew that host resets what comes rewritten, since it does not know these names (P-123).
 */
static __noinline bool resets(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 flags = 0;

	return packet && packet->protocol == IPPROTO_TCP && packet->part != FRAGMENT_LATER &&
	       !bpf_skb_load_bytes(skb, packet->transport + 13, &flags, 1) && flags & 0x04;
}

/* An ICMP error that this host, or who is behind it, sends about a packet of a moved flow. */
__noinline int egress_icmp(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = get_settings();
	struct quotation *quotation = get_quotation();
	struct flow_tuple own = {};
	struct flow_entry *flow;
	struct binding *binding;
	struct packet *inner;
	__u8 carrier;

	if (!packet || !settings || !quotation)
		return pass();
	inner = &quotation->inner;
	if (!parse(skb, packet->transport + 8, skb->protocol, inner) || inner->part == FRAGMENT_LATER)
		return pass_ordinary(skb, packet);
	own.local = inner->destination;
	own.remote = inner->source;
	own.local_port = inner->destination_port;
	own.remote_port = inner->source_port;
	own.transport = inner->protocol;
	/*
	 * A router's error about a packet that was for another host names that host, and stays as it is. Before a host
	 * that is forwarded for there may be routers as well, and what they say goes on in this host's name.
	 */
	if ((packet->origin != FROM_WIRE && !same_address(&packet->source, &own.local)) ||
	    !same_address(&packet->destination, &own.remote))
		return pass_ordinary(skb, packet);
	flow = find_flow(&own);
	if (!flow || !comes_from(skb, packet, flow, &own))
		return pass_ordinary(skb, packet);
	binding = bpf_map_lookup_elem(&bindings, &flow->binding);
	if (!binding || binding->carrier == CARRIER_NATIVE || !has_moved(flow, binding) ||
	    is_native_for_now(flow, binding))
		return packet->origin == FROM_STACK ? pass_ordinary(skb, packet) : pass_native(packet);
	carrier = carrier_of(flow, binding);
	if (carrier == CARRIER_REWRITE && is_ipv4(&binding->peer) != (packet->family == 4))
		carrier = CARRIER_TUNNEL;
	if (carrier == CARRIER_REWRITE && are_names_taken(skb, inner, flow, binding)) {
		count(COUNTER_TAKEN_OUT);
		carrier = CARRIER_TUNNEL;
	}
	if (carrier == CARRIER_TUNNEL) {
		/* The daemon gives it the names that the peer knows (P-110). */
		if (!settings->tunnel)
			return hold(COUNTER_HELD_NO_TUNNEL);
		return skb->ifindex == settings->tunnel ? pass_counted(COUNTER_TUNNELLED_OUT) :
							  to_tunnel(skb, packet, settings->tunnel, COUNTER_TUNNELLED_OUT);
	}
	if (carrier != CARRIER_REWRITE)
		return hold(COUNTER_DROPPED_ICMP_OUT);
	if (!take_allowance(binding, skb->len - packet->network))
		return hold(COUNTER_HELD_ALLOWANCE);
	quotation->inner_names.source = binding->peer;
	quotation->inner_names.destination = binding->local;
	quotation->inner_names.source_port = flow->wire_remote_port;
	quotation->inner_names.destination_port = flow->wire_local_port;
	quotation->outer_names.source = binding->local;
	quotation->outer_names.destination = binding->peer;
	if (!rename_quotation(skb, packet, quotation))
		return drop(COUNTER_DROPPED_ICMP_OUT);
	return to_wire(skb, packet, binding, flow->binding, COUNTER_ICMP_OUT);
}

/* Of no moved flow, but perhaps of one that was helped. */
static __always_inline int pass_lowered(struct __sk_buff *skb, const struct packet *packet,
					const struct flow_tuple *own)
{
	return lower(skb, packet, own) ? pass_ordinary(skb, packet) : drop(COUNTER_DROPPED_RENUMBER);
}

/* A TCP or UDP packet that this host, or who is behind it, sends. */
__noinline int egress_flow(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = get_settings();
	struct flow_tuple own = {};
	struct names names = {};
	struct flow_entry *flow;
	struct binding *binding;
	__u8 carrier;
	bool moved;

	if (!packet || !settings)
		return pass();
	if (packet->part == FRAGMENT_LATER) {
		struct flow_tuple *first;
		struct fragment key;

		fragment_key(&key, packet, FRAGMENT_OUT);
		first = bpf_map_lookup_elem(&fragments, &key);
		/* The host fragments in order, and only first fragments of moved and held flows are written down. */
		if (!first)
			return pass_ordinary(skb, packet);
		own = *first;
	} else {
		own.local = packet->source;
		own.remote = packet->destination;
		own.local_port = packet->source_port;
		own.remote_port = packet->destination_port;
		own.transport = packet->protocol;
	}
	/*
	 * In a namespace, of a connection that is being moved, from there or to there: it is not decided whose it is,
	 * and what is held is sent again. A UDP socket says nothing by itself: what it has sent is its program's, which
	 * sent it before it stood still, and nobody sends it again.
	 */
	if (packet->origin == FROM_ENDPOINT && own.transport == IPPROTO_TCP && rests(skb, &own))
		return hold(COUNTER_HELD);
	flow = find_flow(&own);
	if (packet->origin != FROM_STACK && !(flow && comes_from(skb, packet, flow, &own)))
		return OF_NO_FLOW;
	if (!flow && own.transport == IPPROTO_UDP && !(settings->idle & IDLE_UNCONNECTED))
		flow = find_unconnected(packet, &own);
	if (packet->origin == FROM_WIRE && flow && flow->delivery == DELIVERY_PASSING)
		note_sent(skb, packet, flow);
	if (packet->part == FRAGMENT_LATER)
		count(COUNTER_FRAGMENT_OUT);
	if (!(settings->idle & IDLE_HELPED)) {
		int steered = steer(skb, packet, &own);

		if (steered == STEERED_TO_HOLD)
			return hold_or_answer(skb, packet);
		if (steered == STEERED_TO_HELPER)
			return skb->ifindex == settings->tunnel ? pass_counted(COUNTER_HELPED) :
								  bpf_redirect(settings->tunnel, 0);
	}
	if (!flow)
		return leave_natively(skb, packet) == TC_ACT_UNSPEC ? pass_lowered(skb, packet, &own) : TC_ACT_SHOT;
	binding = bpf_map_lookup_elem(&bindings, &flow->binding);
	moved = binding && binding->carrier != CARRIER_NATIVE && has_moved(flow, binding) &&
		!is_native_for_now(flow, binding);
	if (packet->part == FRAGMENT_FIRST && (moved || flow->held & HELD_BACK || packet->origin == FROM_ENDPOINT)) {
		struct fragment key;

		fragment_key(&key, packet, FRAGMENT_OUT);
		bpf_map_update_elem(&fragments, &key, &own, BPF_ANY);
	}
	if (!moved && !(flow->held & HELD_BACK)) {
		if (packet->origin == FROM_STACK && may_stray(skb, settings) && strays(skb, packet))
			return TO_BE_LED_HOME;
		count(COUNTER_NATIVE_OUT);
		if (packet->origin == FROM_STACK)
			return pass_lowered(skb, packet, &own);
		return lower(skb, packet, &own) ? pass_native(packet) : drop(COUNTER_DROPPED_RENUMBER);
	}
	/* Without a binding nothing is moved. */
	if (!moved || !binding)
		return hold_or_answer(skb, packet);
	note_use(flow);
	carrier = carrier_of(flow, binding);
	/* The daemon's own question whether the flow is at home after all. */
	if (carrier == CARRIER_LISTEN && packet->origin == FROM_STACK && (skb->mark & settings->mark_mask) == (settings->mark_mask & ~settings->mark))
		return lower(skb, packet, &own) ? pass() : drop(COUNTER_DROPPED_RENUMBER);
	if (flow->held & HELD_BACK)
		carrier = CARRIER_HOLD;
	if (carrier == CARRIER_REWRITE && is_ipv4(&binding->peer) != (packet->family == 4)) {
		/* The peers of a binding meet in one family, and flows of the other can only go inside. */
		if (!settings->tunnel)
			return hold(COUNTER_HELD_FAMILY);
		carrier = CARRIER_TUNNEL;
	}
	if (carrier == CARRIER_REWRITE && flow->delivery == DELIVERY_PASSING && resets(skb, packet))
		carrier = CARRIER_TUNNEL;
	if (carrier == CARRIER_REWRITE && are_names_taken(skb, packet, flow, binding)) {
		count(COUNTER_TAKEN_OUT);
		carrier = CARRIER_TUNNEL;
	}
	if (carrier == CARRIER_TUNNEL) {
		if (!settings->tunnel)
			return hold(COUNTER_HELD_NO_TUNNEL);
		if (flow->held & HELD_UNCONNECTED && !same_address(&packet->source, &own.local) &&
		    !rename_source(skb, packet, &own))
			return drop(COUNTER_DROPPED_REWRITE);
		if (skb->ifindex != settings->tunnel)
			return to_tunnel(skb, packet, settings->tunnel, COUNTER_TUNNELLED_OUT);
		return lower(skb, packet, &own) ? pass_counted(COUNTER_TUNNELLED_OUT) : drop(COUNTER_DROPPED_RENUMBER);
	}
	if (carrier != CARRIER_REWRITE)
		return hold_or_answer(skb, packet);
	/*
	 * Whoever is not of this host's own stack does not go by its routes, which know how long a packet may be
	 * (P-111).
	 */
	if (packet->origin != FROM_STACK && binding->mtu && longest_part(skb, packet) > binding->mtu) {
		skb->cb[0] = binding->mtu;
		return TO_BE_TOLD;
	}
	if (!take_allowance(binding, skb->len - packet->network))
		return hold(COUNTER_HELD_ALLOWANCE);
	if (!lower(skb, packet, &own))
		return drop(COUNTER_DROPPED_RENUMBER);
	wire_names_out(&names, flow, binding);
	if (packet->part == FRAGMENT_LATER) {
		names.source_port = 0;
		names.destination_port = 0;
	}
	if (same_names(packet, &names)) {
		/* Back where it began. On the TUN device it still needs a way out. */
		if (packet->origin == FROM_STACK && skb->ifindex != settings->tunnel)
			return pass_counted(COUNTER_HOME_OUT);
	} else if (!rename_packet(skb, packet, &names)) {
		return drop(COUNTER_DROPPED_REWRITE);
	}
	return to_wire(skb, packet, binding, flow->binding, COUNTER_REWRITTEN_OUT);
}

/* `network`: offset of the IP header, that is the length of the device's link header. */
static __always_inline int egress(struct __sk_buff *skb, __u32 network)
{
	const struct settings *settings = get_settings();
	struct packet packet;
	int verdict;

	if (!settings)
		return pass();
	if (!(settings->idle & IDLE_DATAGRAMS) && skb->tc_index != TRANSLATED)
		look_for_datagram(skb, network);
	if (!(settings->idle & IDLE_TRAFFIC))
		note_leaving(skb, network);
	if (settings->idle & IDLE_TRANSLATION && !may_stray(skb, settings))
		return pass();
	if (skb->tc_index == TRANSLATED) {
		if (network)
			note_next_hop(skb);
		return pass();
	}
	__builtin_memset(&packet, 0, sizeof(packet));
	if (!parse(skb, network, skb->protocol, &packet))
		return pass();
	if (settings->idle & IDLE_TRANSLATION)
		return egress_at_home(skb, &packet);
	if (packet.protocol == IPPROTO_TCP || packet.protocol == IPPROTO_UDP) {
		verdict = egress_flow(skb, &packet);
		if (verdict == TO_BE_LED_HOME)
			return lead_home(skb, &packet);
		/* Rewritten, and not sent anew: it does not come by again. */
		if (verdict == TC_ACT_UNSPEC && skb->tc_index == TRANSLATED && !(settings->idle & IDLE_TRAFFIC))
			note_leaving(skb, network);
		return verdict;
	}
	if (quotes_packet(skb, &packet))
		return egress_icmp(skb, &packet);
	return pass_ordinary(skb, &packet);
}

/* What runs while nothing could move yet. */
static __always_inline int egress_datagrams(struct __sk_buff *skb, __u32 network)
{
	const struct settings *settings = get_settings();

	if (settings && !(settings->idle & IDLE_DATAGRAMS))
		look_for_datagram(skb, network);
	return pass();
}

#endif
