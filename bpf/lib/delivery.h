/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Local ends that are not sockets of this host's own stack (docs/decisions/0016-where-a-local-end-is.md): in an
 * endpoint namespace, or at another host behind this one. What comes in for them is led there instead of up the stack.
 */
#ifndef WHIMBREL_DELIVERY_H
#define WHIMBREL_DELIVERY_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "connection.h"
#include "egress.h"
#include "helped.h"
#include "parse.h"
#include "rewrite.h"
#include "too_long.h"
#include "verdict.h"

/* What find_delivery() says beside what `delivery` of a flow may be: to the TUN device. */
#define DELIVERY_TUNNEL 0xfffffffeU

/* parse() anew, for a packet that has other names now. */
__noinline bool read_packet(struct __sk_buff *skb, __u32 network, struct packet *packet)
{
	return packet && parse(skb, network, skb->protocol, packet);
}

/*
 * The flow that an ICMP error is about, as its receiver knows it: the quotation is of what that sent. All zero: it
 * quotes nothing that has ports.
 */
__noinline bool quoted_flow(struct __sk_buff *skb, const struct packet *packet, struct flow_tuple *own)
{
	struct quotation *quotation = get_quotation();
	const struct packet *inner;

	if (!packet || !own || !quotation)
		return false;
	if (!parse(skb, packet->transport + 8, skb->protocol, &quotation->inner))
		return false;
	inner = &quotation->inner;
	own->local = inner->source;
	own->remote = inner->destination;
	own->local_port = inner->source_port;
	own->remote_port = inner->destination_port;
	own->transport = inner->protocol;
	return true;
}

/* What came in, under its own names, is of this flow: also for fragments and ICMP errors. */
static __always_inline void inbound_flow(struct __sk_buff *skb, const struct packet *packet, struct flow_tuple *own)
{
	if (quotes_packet(skb, packet) && quoted_flow(skb, packet, own))
		return;
	if (packet->part == FRAGMENT_LATER) {
		const struct flow_tuple *first;
		struct fragment key;

		fragment_key(&key, packet, FRAGMENT_IN);
		first = bpf_map_lookup_elem(&fragments, &key);
		if (first) {
			*own = *first;
			return;
		}
	}
	name_inbound(own, packet);
}

/* Does this host's own stack have a UDP socket that is connected so? */
static __noinline bool is_connected(struct __sk_buff *skb, const struct packet *packet, const struct flow_tuple *own)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	__u32 state;

	if (!packet || !own)
		return false;
	socket = bpf_sk_lookup_udp(skb, &tuple, name_socket(&tuple, own), BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return false;
	state = socket->state;
	bpf_sk_release(socket);
	return state == BPF_TCP_ESTABLISHED;
}

/* Does this host's own stack have this connection, or answer for one that is being opened? */
static __noinline bool has_connection(struct __sk_buff *skb, const struct packet *packet, const struct flow_tuple *own)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	__u32 state;

	if (!packet || !own)
		return false;
	if (own->transport == IPPROTO_UDP)
		return is_connected(skb, packet, own);
	socket = bpf_skc_lookup_tcp(skb, &tuple, name_socket(&tuple, own), BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return false;
	state = socket->state;
	bpf_sk_release(socket);
	return state != BPF_TCP_LISTEN;
}

/*
 * Where what comes in for a flow's local end goes. What this host forwards by itself its firewall sees, in either
 * direction; what has moved, in neither.
 */
static __always_inline __u32 delivery_of(const struct flow_entry *flow)
{
	const struct binding *binding;

	if (flow->delivery != DELIVERY_PASSING)
		return flow->delivery;
	binding = bpf_map_lookup_elem(&bindings, &flow->binding);
	return binding && binding->carrier != CARRIER_NATIVE && has_moved(flow, binding) ? DELIVERY_ROUTES : 0;
}

/*
 * Is this ICMP, of no flow, for whoever has the address? Errors about what it has sent are, and echoes; all else is for
 * the host that neighbours take the address to be at, as what they ask it (RFC 4861).
 */
static __always_inline bool is_for_address(struct __sk_buff *skb, const struct packet *packet,
					   const struct flow_tuple *own)
{
	__u8 type;

	if ((packet->protocol != IPPROTO_ICMP && packet->protocol != IPPROTO_ICMPV6) ||
	    packet->part == FRAGMENT_LATER || own->transport != packet->protocol)
		return true;
	if (bpf_skb_load_bytes(skb, packet->transport, &type, sizeof(type)))
		return false;
	if (packet->family == 4)
		return type == 0 || type == 8 || type == 3 || type == 11 || type == 12;
	return type >= 1 && (type <= 4 || type == 128 || type == 129);
}

/* Where what came in, and is under its own names, goes: 0 for this host's own stack. */
__noinline __u32 find_delivery(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = get_settings();
	struct flow_tuple own = {};
	const struct flow_entry *flow;
	const struct lent *lent;
	__u32 delivery = 0;

	if (!packet || !settings)
		return 0;
	inbound_flow(skb, packet, &own);
	flow = find_flow(&own);
	if (flow) {
		delivery = delivery_of(flow);
	} else if (!(settings->idle & IDLE_ENDPOINTS) && is_for_address(skb, packet, &own)) {
		lent = find_lent(&own.local, own.local_port, own.transport);
		if (lent) {
			delivery = lent->delivery;
			if (delivery == LENT_SHARED)
				delivery = has_connection(skb, packet, &own) ? 0 : DELIVERY_TUNNEL;
			else if (!delivery && lent->binding)
				delivery = DELIVERY_TUNNEL;
		} else if (skb->ifindex == settings->tunnel) {
			/* Of a peer that has this end on lease; the daemon has seen to it that it is its own. */
			lent = find_lent(&own.remote, own.remote_port, own.transport);
			if (lent && lent->binding)
				delivery = DELIVERY_ROUTES;
		}
	}
	if (delivery && packet->part == FRAGMENT_FIRST) {
		struct fragment key;

		fragment_key(&key, packet, FRAGMENT_IN);
		bpf_map_update_elem(&fragments, &key, &own, BPF_ANY);
	}
	return delivery;
}

/*
 * The same as rests() of a UDP socket that takes what anybody sends, and of one that listens, which takes first
 * segments. What other sockets are connected to take is theirs.
 */
static __noinline bool rests_unconnected(struct __sk_buff *skb, const struct packet *packet,
					 const struct flow_tuple *own)
{
	const struct settings *settings = get_settings();
	struct flow_tuple key;

	if (!packet || !own || !settings || settings->idle & IDLE_HELPED)
		return false;
	if (own->transport != IPPROTO_UDP && !opens_connection(skb, packet))
		return false;
	key = *own;
	/* Unspecified, of the same family: IPv4 is IPv4-mapped. */
	key.remote.words[0] = 0;
	key.remote.words[1] = 0;
	key.remote.words[2] = packet->family == 4 ? own->remote.words[2] : 0;
	key.remote.words[3] = 0;
	key.remote_port = 0;
	return rests(skb, &key) && !find_flow(own) && !has_connection(skb, packet, own);
}

/* Has what came in, and is under its own names, to be set aside, since its socket is being moved? */
__noinline bool is_set_aside(struct __sk_buff *skb, const struct packet *packet)
{
	struct flow_tuple own = {};

	if (!packet || (packet->protocol != IPPROTO_TCP && packet->protocol != IPPROTO_UDP))
		return false;
	inbound_flow(skb, packet, &own);
	if (!rests(skb, &own) && !rests_unconnected(skb, packet, &own))
		return false;
	if (packet->part == FRAGMENT_FIRST) {
		struct fragment key;

		fragment_key(&key, packet, FRAGMENT_IN);
		bpf_map_update_elem(&fragments, &key, &own, BPF_ANY);
	}
	return true;
}

/* To the daemon, which reads it from the TUN device as if it were for the tunnel. No program there is to look at it. */
static __always_inline int set_aside(struct __sk_buff *skb, const struct settings *settings)
{
	if (!settings->tunnel)
		return hold(COUNTER_HELD_IN);
	skb->tc_index = TRANSLATED;
	count(COUNTER_SET_ASIDE);
	return bpf_redirect(settings->tunnel, 0);
}

/* Into an endpoint namespace, at once: its end takes the packet as if it had come in there. From ingress only. */
static __always_inline int into_endpoint(__u32 interface)
{
	count(COUNTER_ENDPOINT_IN);
	return bpf_redirect_peer(interface, 0);
}

/* Leads what came in, and is under its own names, to where its local end is. */
static __always_inline int bring(struct __sk_buff *skb, struct packet *packet)
{
	const struct settings *settings = get_settings();
	__u32 delivery;

	if (!settings)
		return pass();
	if (!(settings->idle & IDLE_HELPED) && is_set_aside(skb, packet))
		return set_aside(skb, settings);
	if ((settings->idle & IDLE_DELIVERY) == IDLE_DELIVERY)
		return pass();
	delivery = packet->led ? packet->delivery : find_delivery(skb, packet);
	if (!delivery)
		return pass();
	packet->origin = FROM_WIRE;
	if (delivery == DELIVERY_ROUTES) {
		int verdict = to_routes(skb, packet);

		return verdict == TO_BE_TOLD ? tell_owner(skb, packet) : verdict;
	}
	if (delivery != DELIVERY_TUNNEL)
		return into_endpoint(delivery);
	/*
	 * What came by a tunnel goes into none, or two ends that lend each other an address would never be done with
	 * it.
	 */
	if (!settings->tunnel || skb->ifindex == settings->tunnel)
		return hold(COUNTER_HELD_NO_TUNNEL);
	return to_tunnel(skb, packet, settings->tunnel, COUNTER_LEASED_OUT);
}

/* What came in from the far end of a flow whose local end is at another host is sent on as if this host had sent it. */
static __always_inline int forward(struct __sk_buff *skb, struct packet *packet)
{
	int verdict = OF_NO_FLOW;

	packet->origin = FROM_WIRE;
	if (packet->protocol == IPPROTO_TCP || packet->protocol == IPPROTO_UDP)
		verdict = egress_flow(skb, packet);
	else if (quotes_packet(skb, packet))
		verdict = egress_icmp(skb, packet);
	packet->origin = FROM_STACK;
	return verdict;
}

#endif
