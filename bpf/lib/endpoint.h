/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What endpoint namespaces send, and what this host's own programs send to them. */
#ifndef WHIMBREL_ENDPOINT_H
#define WHIMBREL_ENDPOINT_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "egress.h"
#include "parse.h"
#include "too_long.h"
#include "delivery.h"
#include "verdict.h"

/* What goes out, under its own names, is of this flow: also for fragments and ICMP errors. */
static __always_inline void outbound_flow(struct __sk_buff *skb, const struct packet *packet, struct flow_tuple *own)
{
	if (quotes_packet(skb, packet) && quoted_flow(skb, packet, own)) {
		struct address sender = own->local;
		__be16 port = own->local_port;

		/* The quotation is of what the other end sent. */
		own->local = own->remote;
		own->local_port = own->remote_port;
		own->remote = sender;
		own->remote_port = port;
		return;
	}
	if (packet->part == FRAGMENT_LATER) {
		const struct flow_tuple *first;
		struct fragment key;

		fragment_key(&key, packet, FRAGMENT_OUT);
		first = bpf_map_lookup_elem(&fragments, &key);
		if (first) {
			*own = *first;
			return;
		}
	}
	own->local = packet->source;
	own->remote = packet->destination;
	own->local_port = packet->source_port;
	own->remote_port = packet->destination_port;
	own->transport = packet->protocol;
}

/*
 * Of no flow, from an endpoint namespace. Only what is sent from an end that is lent to it may leave: answers to
 * anything else would come to somebody else.
 */
__noinline int leave_unknown(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = get_settings();
	const struct endpoint *endpoint;
	struct flow_tuple own = {};
	__u32 interface = skb->ifindex;
	const struct lent *lent;

	if (!packet || !settings)
		return TC_ACT_SHOT;
	endpoint = bpf_map_lookup_elem(&endpoints, &interface);
	if (!endpoint || endpoint->unknown == UNKNOWN_DROPPED)
		return drop(COUNTER_DROPPED_ENDPOINT);
	outbound_flow(skb, packet, &own);
	lent = find_lent(&own.local, own.local_port, own.transport);
	if (!lent || lent->delivery != interface)
		return drop(COUNTER_DROPPED_ENDPOINT);
	if (packet->part == FRAGMENT_FIRST) {
		struct fragment key;

		fragment_key(&key, packet, FRAGMENT_OUT);
		bpf_map_update_elem(&fragments, &key, &own, BPF_ANY);
	}
	/* The other end may be in a namespace of this host, too, or in the same. */
	lent = find_lent(&own.remote, own.remote_port, own.transport);
	if (lent && lent->delivery && lent->delivery != LENT_SHARED)
		return bpf_skb_change_type(skb, 0 /* PACKET_HOST */) ? TC_ACT_SHOT : into_endpoint(lent->delivery);
	if (endpoint->unknown == UNKNOWN_ROUTED)
		return TO_BE_ROUTED;
	if (!settings->tunnel)
		return hold(COUNTER_HELD_NO_TUNNEL);
	return to_tunnel(skb, packet, settings->tunnel, COUNTER_LEASED_OUT);
}

/*
 * On the outer end of an endpoint namespace's pair: everything that the namespace sends. What is its flows' goes out as
 * the host's own does, and nothing goes out by itself.
 */
static __always_inline int leave_endpoint(struct __sk_buff *skb)
{
	const struct endpoint *endpoint;
	__u32 interface = skb->ifindex;
	struct packet packet = {};
	int verdict = OF_NO_FLOW;

	endpoint = bpf_map_lookup_elem(&endpoints, &interface);
	if (!endpoint || !parse(skb, ETH_HLEN, skb->protocol, &packet) ||
	    !same_address(&packet.source, &endpoint->address))
		return drop(COUNTER_DROPPED_ENDPOINT);
	skb->tc_index = 0;
	packet.origin = FROM_ENDPOINT;
	if (packet.protocol == IPPROTO_TCP || packet.protocol == IPPROTO_UDP)
		verdict = egress_flow(skb, &packet);
	else if (quotes_packet(skb, &packet))
		verdict = egress_icmp(skb, &packet);
	if (verdict == OF_NO_FLOW)
		verdict = leave_unknown(skb, &packet);
	if (verdict == TO_BE_ROUTED) {
		verdict = to_routes(skb, &packet);
		/* What is for this host itself passes. */
		if (verdict != TO_BE_TOLD)
			return verdict;
	}
	if (verdict == TO_BE_TOLD)
		return send_too_long(skb, &packet);
	return verdict == TC_ACT_UNSPEC ? TC_ACT_SHOT : verdict;
}

/*
 * On the egress of the loopback device: what programs of this host send to an end that has an address of this host and
 * is lent. No other device sees it.
 */
static __always_inline int egress_loopback(struct __sk_buff *skb)
{
	const struct settings *settings = get_settings();
	const __u8 inner[ETH_ALEN] = INNER_HARDWARE_ADDRESS;
	struct packet packet = {};
	__u32 delivery;

	if (!settings || settings->idle & IDLE_ENDPOINTS || !parse(skb, ETH_HLEN, skb->protocol, &packet))
		return pass();
	delivery = find_delivery(skb, &packet);
	if (!delivery || delivery == DELIVERY_ROUTES)
		return pass();
	if (delivery == DELIVERY_TUNNEL)
		return settings->tunnel ? to_tunnel(skb, &packet, settings->tunnel, COUNTER_LEASED_OUT) :
					  hold(COUNTER_HELD_NO_TUNNEL);
	if (bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_dest), inner, sizeof(inner), 0))
		return drop(COUNTER_DROPPED_ENDPOINT);
	count(COUNTER_ENDPOINT_IN);
	return bpf_redirect(delivery, 0);
}

#endif
