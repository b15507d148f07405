/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From the wire tuple back to the own one. */
#ifndef WHIMBREL_INGRESS_H
#define WHIMBREL_INGRESS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "connection.h"
#include "egress.h"
#include "helped.h"
#include "claim.h"
#include "introduction.h"
#include "lapse.h"
#include "parse.h"
#include "rewrite.h"
#include "taken.h"
#include "too_long.h"
#include "delivery.h"
#include "verdict.h"

/*
 * The mark lets routing rules tell these packets from the rest: their destination may be an address that this host gave
 * up, and their source one that strict reverse path filtering would not expect here. What comes under own names by the
 * path that is being left gets none: its way back is a rule of its own (source_routing.rs).
 */
static __always_inline void set_mark(struct __sk_buff *skb, const struct settings *settings)
{
	skb->mark = (skb->mark & ~settings->mark_mask) | (settings->mark & settings->mark_mask);
}

/*
 * Pairs of places that the two ends have left are accepted as well; what comes by these says nothing about the present
 * one.
 */
static __always_inline bool is_present(const struct binding *binding, const struct address *peer,
				       const struct address *local)
{
	return same_address(peer, &binding->peer) && same_address(local, &binding->local);
}

/*
 * What a peer says to the daemon, and sends by the tunnel, is of no flow. From the moment that a better way to
 * everywhere is there until the daemon has seen it and made the rule of source_routing.rs, a strict reverse path filter
 * would drop it. So it gets the mark as long as it comes by the device that it always came by. Of fragments only the
 * first has ports.
 */
static __noinline bool is_of_path(struct __sk_buff *skb, const struct packet *packet)
{
	struct locator_pair pair;
	const struct path *path;

	if (!packet)
		return false;
	pair.peer = packet->source;
	pair.local = packet->destination;
	path = bpf_map_lookup_elem(&paths, &pair);
	if (!path || path->arrival != skb->ifindex)
		return false;
	return packet->part == FRAGMENT_LATER || bpf_ntohs(packet->destination_port) == path->port;
}

/*
 * The mark takes a packet past strict reverse path filters. Where there is one it is asked here first what the filter
 * would have asked: whether the packet came by the device that its answers leave by. Where a device is on top of
 * another (macvlan) the one below sees what is for the other's link-layer address.
 */
static __always_inline bool is_astray(const struct __sk_buff *skb, const struct settings *settings,
				      const struct locator *locator)
{
	return settings->strict && locator->arrival && locator->arrival != skb->ifindex;
}

#define PACKET_HOST 0
#define PACKET_OTHERHOST 3

static __always_inline int go_astray(const struct __sk_buff *skb)
{
	return skb->pkt_type == PACKET_HOST ? drop(COUNTER_DROPPED_ASTRAY) : pass();
}

/* As came_natively(), of what may have come under the wire names of this flow. Few packets of UDP have to ask. */
static __always_inline bool is_natives(struct __sk_buff *skb, const struct packet *packet, struct flow_entry *flow,
				       __u32 id, const struct binding *binding)
{
	__u32 now;

	if (packet->protocol != IPPROTO_UDP || !flow || flow->binding != id || !binding || !binding->names_kept ||
	    !has_moved(flow, binding) || !is_present(binding, &packet->source, &packet->destination))
		return came_natively(skb, packet);
	now = bpf_ktime_get_coarse_ns() / 1000000;
	if (were_free(IPPROTO_UDP, flow, binding, now))
		return false;
	if (came_natively(skb, packet))
		return true;
	note_free(flow, binding, now);
	return false;
}

/* The flow came rewritten: whatever stands before the peer lets it through, so it may be answered so (P-24). */
static __always_inline void hear(__u32 id, struct flow_entry *flow, const struct binding *binding,
				 const struct packet *packet)
{
	if (!binding || (binding->carrier != CARRIER_FOLLOW && binding->carrier != CARRIER_REWRITE))
		return;
	if (!is_present(binding, &packet->source, &packet->destination))
		return;
	/* What still comes by way of a former peer says nothing about this one either. */
	if (flow->binding != id)
		return;
	if (flow->heard_local_place != binding->local_place || flow->heard_peer_place != binding->peer_place) {
		flow->heard_local_place = binding->local_place;
		flow->heard_peer_place = binding->peer_place;
	}
}

/* The peer is heard where it is: it is answered there (P-221). */
static __always_inline void hear_moved(struct flow_entry *flow)
{
	if (!(flow->held & HELD_UNCONNECTED))
		return;
	note_use(flow);
	if (flow->conflict & CONFLICT_NATIVE)
		flow->conflict &= ~CONFLICT_NATIVE;
}

/* For so long what the peer sent before it left may still be on its way, in ms. */
#define LATE_NATIVE 2000
/* What the clock that is read here may be behind. */
#define CLOCK_STEP 100

/*
 * Under its own names: of somebody who is where the peer was, if the peer is elsewhere. He is answered there, and the
 * daemon gives the flow up (P-221).
 */
static __always_inline void hear_native(struct flow_entry *flow, const struct binding *binding,
					const struct flow_tuple *own)
{
	if (!(flow->held & HELD_UNCONNECTED))
		return;
	if (!binding || binding->carrier == CARRIER_NATIVE || flow->home_peer_place == binding->peer_place) {
		if (flow->conflict & CONFLICT_NATIVE)
			flow->conflict &= ~CONFLICT_NATIVE;
	} else if ((__u32)(bpf_ktime_get_coarse_ns() / 1000000) - binding->peer_since + CLOCK_STEP >=
		   LATE_NATIVE + CLOCK_STEP) {
		if (!(flow->conflict & CONFLICT_NATIVE))
			flow->conflict |= CONFLICT_NATIVE;
		report_claim(flow, own);
	}
}

/* An ICMP error, from anybody on the path, about a packet that left under a wire tuple. */
__noinline int ingress_icmp(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = get_settings();
	struct quotation *quotation = get_quotation();
	struct flow_tuple *own;
	struct packet *inner;
	const struct locator *locator;

	if (!packet || !settings || !quotation)
		return pass();
	inner = &quotation->inner;
	if (!parse(skb, packet->transport + 8, skb->protocol, inner) || inner->part == FRAGMENT_LATER)
		return pass();
	if (!same_address(&packet->destination, &inner->source))
		return pass();
	/*
	 * About what this host has said in the name of one behind it, who does not know what to do with it: a rule
	 * leads it to this stack.
	 */
	if (settings->control_port && !(settings->idle & IDLE_FORWARDED) && inner->protocol == IPPROTO_UDP &&
	    bpf_ntohs(inner->source_port) == settings->control_port) {
		skb->mark |= settings->mark_mask;
		return pass();
	}
	locator = find_locator(&inner->destination, &inner->source);
	if (!locator)
		return pass();
	own = find_own(locator->binding, inner->protocol, inner->source_port, inner->destination_port);
	if (!own || is_ipv4(&own->remote) != (packet->family == 4))
		return pass();
	if (is_astray(skb, settings, locator))
		return go_astray(skb);
	quotation->inner_names.source = own->local;
	quotation->inner_names.destination = own->remote;
	quotation->inner_names.source_port = own->local_port;
	quotation->inner_names.destination_port = own->remote_port;
	quotation->outer_names.destination = own->local;
	if (!same_names(inner, &quotation->inner_names) && left_natively(skb, inner))
		return pass_counted(COUNTER_TAKEN_IN);
	/* The peer's own errors come from where the socket thinks it is; a router's from the router. */
	quotation->outer_names.source =
		same_address(&packet->source, &inner->destination) ? own->remote : packet->source;
	if (!same_names(inner, &quotation->inner_names) && !rename_quotation(skb, packet, quotation))
		return drop(COUNTER_DROPPED_RESTORE);
	set_mark(skb, settings);
	return pass_counted(COUNTER_ICMP_IN);
}

/* A held flow is where it always was (P-39). Said once; the binding merely holds from then on. */
static __always_inline void report_native(struct binding *binding, const struct flow_tuple *own)
{
	struct event *event = bpf_ringbuf_reserve(&arrivals, sizeof(*event), 0);

	if (!event)
		return;
	binding->carrier = CARRIER_HOLD;
	__builtin_memset(event, 0, sizeof(*event));
	event->tuple = *own;
	event->kind = EVENT_HEARD_NATIVELY;
	bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
}

/* Nothing has to be looked for among packets that come under their own names. */
#define IDLE_QUIET (IDLE_LISTENING | IDLE_LAPSES | IDLE_HELPED)
/* The same of datagrams. */
#define IDLE_QUIET_DATAGRAMS (IDLE_FORWARDED | IDLE_UNCONNECTED)

/* A packet under its own names may be of a flow that was helped. */
static __always_inline int pass_raised(struct __sk_buff *skb, const struct packet *packet, const struct flow_tuple *own)
{
	return raise(skb, packet, own) ? pass() : TC_ACT_SHOT;
}

/*
 * Do the peer's moved flows go elsewhere, or wait until it says where? What is listened for shows that nothing has
 * moved.
 */
static __always_inline bool leads(const struct binding *binding)
{
	return binding->carrier != CARRIER_NATIVE && binding->carrier != CARRIER_LISTEN;
}

/*
 * A packet that came under its own names, or as a stranger. What was sent natively in the moment before a move was
 * noticed may have gone by the new network, where a NAT gave it another name: the peer knows no such connection, and
 * its reset comes back through that NAT. A peer that means to reset a moved flow says so by the way that the flow
 * takes; one that is gone says so again when it is next asked.
 */
__noinline int ingress_native(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = get_settings();
	struct flow_tuple own = {};
	struct flow_entry *flow;
	struct binding *binding;
	__u8 flags = 0;
	bool reset, opens;

	if (!packet || !settings || packet->part == FRAGMENT_LATER)
		return pass();
	if (packet->protocol == IPPROTO_TCP && bpf_skb_load_bytes(skb, packet->transport + TCP_FLAGS, &flags, 1))
		return pass();
	reset = flags & TCP_RST;
	opens = (flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_SYN;
	if (!reset && !opens && (settings->idle & IDLE_QUIET) == IDLE_QUIET &&
	    (packet->protocol != IPPROTO_UDP || (settings->idle & IDLE_QUIET_DATAGRAMS) == IDLE_QUIET_DATAGRAMS))
		return pass();
	name_inbound(&own, packet);
	flow = find_flow(&own);
	if (!flow)
		return pass_raised(skb, packet, &own);
	binding = bpf_map_lookup_elem(&bindings, &flow->binding);
	if (opens && binding && binding->carrier != CARRIER_NATIVE && has_moved(flow, binding)) {
		report_claim(flow, &own);
		return flow->conflict & CONFLICT_GIVES_WAY ? drop(COUNTER_CLAIMED) : TO_BE_REFUSED;
	}
	hear_native(flow, binding, &own);
	/*
	 * The peer's own come by where it is: somebody else has its former port, and nobody knows what socket he means
	 * (P-104).
	 */
	if (flow->delivery == DELIVERY_PASSING && packet->protocol == IPPROTO_UDP && binding && leads(binding) &&
	    has_moved(flow, binding))
		report_claim(flow, &own);
	/* Whoever has opened the connection is there still, and never was this peer. */
	if (flow->held & HELD_LATE && !reset && binding && leads(binding) && has_moved(flow, binding))
		report_conflict(flow, &own, CONFLICT_STILL_THERE, EVENT_STILL_THERE);
	if (!(settings->idle & IDLE_LAPSES) && !forget_lapse(skb, packet, &own))
		return TC_ACT_SHOT;
	if (binding && binding->carrier != CARRIER_NATIVE) {
		if (!reset) {
			if (binding->carrier == CARRIER_LISTEN && has_moved(flow, binding))
				report_native(binding, &own);
		} else if (has_moved(flow, binding) || (binding->arrival && binding->arrival != skb->ifindex)) {
			return drop(COUNTER_DROPPED_RESET);
		}
	}
	return pass_raised(skb, packet, &own);
}

/* A TCP or UDP packet that came in. */
__noinline int ingress_flow(struct __sk_buff *skb, struct packet *packet)
{
	const struct settings *settings = get_settings();
	struct flow_entry *flow = NULL;
	struct names names = {};
	struct binding *binding;
	const struct locator *locator;
	struct flow_tuple *own;
	__u32 id;

	if (!packet || !settings)
		return pass();
	locator = find_locator(&packet->source, &packet->destination);
	if (!locator)
		return ingress_native(skb, packet);
	id = locator->binding;
	binding = bpf_map_lookup_elem(&bindings, &id);
	if (packet->part == FRAGMENT_LATER) {
		struct fragment key;

		fragment_key(&key, packet, FRAGMENT_IN);
		own = bpf_map_lookup_elem(&fragments, &key);
		/*
		 * Without its first fragment nobody can tell whether it belongs to a moved flow or to anything else
		 * between the two hosts. The latter must not suffer; the former ends in reassembly.
		 */
		if (!own)
			return pass_counted(COUNTER_FRAGMENT_UNMATCHED);
		count(COUNTER_FRAGMENT_IN);
	} else {
		own = find_own(id, packet->protocol, packet->destination_port, packet->source_port);
		if (!own)
			return ingress_native(skb, packet);
		flow = find_flow(own);
	}
	if (is_ipv4(&own->remote) != (packet->family == 4))
		return pass();
	names.source = own->remote;
	names.destination = own->local;
	if (packet->part != FRAGMENT_LATER) {
		struct fragment key;

		names.source_port = own->remote_port;
		names.destination_port = own->local_port;
		/*
		 * No flow sends one: it is from whoever else has these names, perhaps the flow's own where the peer
		 * was.
		 */
		if (opens_connection(skb, packet))
			return ingress_native(skb, packet);
		if (packet->part == FRAGMENT_FIRST)
			fragment_key(&key, packet, FRAGMENT_IN);
		if (!same_names(packet, &names) && is_natives(skb, packet, flow, id, binding)) {
			/* One of this number may have gone before. */
			if (packet->part == FRAGMENT_FIRST)
				bpf_map_delete_elem(&fragments, &key);
			count(COUNTER_TAKEN_IN);
			return ingress_native(skb, packet);
		}
		if (flow && flow->held & HELD_BEYOND && resets(skb, packet))
			return drop(COUNTER_DROPPED_RESET);
		if (packet->part == FRAGMENT_FIRST)
			bpf_map_update_elem(&fragments, &key, own, BPF_ANY);
	}
	if (is_astray(skb, settings, locator))
		return go_astray(skb);
	if (flow) {
		hear(id, flow, binding, packet);
		hear_moved(flow);
	}
	set_mark(skb, settings);
	if (!(settings->idle & IDLE_LAPSES) && !forget_lapse(skb, packet, own))
		return TC_ACT_SHOT;
	if (!(settings->idle & IDLE_HELPED) && !raise(skb, packet, own))
		return TC_ACT_SHOT;
	/* find_delivery() has something to write down about a first fragment. */
	if (flow && packet->part == FRAGMENT_WHOLE) {
		packet->delivery = delivery_of(flow);
		packet->led = 1;
	}
	if (same_names(packet, &names))
		return pass_counted(COUNTER_HOME_IN);
	if (!rename_packet(skb, packet, &names))
		return drop(COUNTER_DROPPED_RESTORE);
	packet->source = names.source;
	packet->destination = names.destination;
	packet->source_port = names.source_port;
	packet->destination_port = names.destination_port;
	return pass_counted(COUNTER_REWRITTEN_IN);
}

/*
 * Routing rules lead here what is said to the control port of hosts behind this one. They do not see the ports of
 * fragments, not even of the first, as tunnels have them whose sender does not know its path yet: these get both bits
 * of the mark.
 */
__noinline bool claim_fragment(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = get_settings();
	const struct flow_tuple *first;
	struct flow_tuple none = {};
	struct fragment key;

	if (!packet || !settings || !settings->control_port || packet->protocol != IPPROTO_UDP)
		return false;
	fragment_key(&key, packet, FRAGMENT_IN);
	if (packet->part == FRAGMENT_FIRST) {
		if (bpf_ntohs(packet->destination_port) != settings->control_port) {
			/* One of this number may have gone before. */
			bpf_map_delete_elem(&fragments, &key);
			return false;
		}
		/* Of no flow. */
		none.local_port = packet->destination_port;
		bpf_map_update_elem(&fragments, &key, &none, BPF_ANY);
	} else {
		first = bpf_map_lookup_elem(&fragments, &key);
		if (!first || first->transport || bpf_ntohs(first->local_port) != settings->control_port)
			return false;
	}
	skb->mark |= settings->mark_mask;
	return true;
}

/* What comes in is for this host's own stack, once it is under its own names. */
#define IDLE_BROUGHT (IDLE_DELIVERY | IDLE_HELPED)

/* While all are idle there is nothing to do for what comes in. */
#define IDLE_ALL (IDLE_TRANSLATION | IDLE_INTRODUCTIONS | IDLE_TRAFFIC)

static __always_inline int ingress(struct __sk_buff *skb, __u32 network)
{
	const struct settings *settings = get_settings();
	struct packet packet = {};
	int verdict;

	if (!settings || (settings->idle & IDLE_ALL) == IDLE_ALL)
		return pass();
	/* Between namespaces of one machine the sender's note arrives with the packet. */
	if (skb->tc_index == TRANSLATED)
		skb->tc_index = 0;
	/* Whoever has a vacated address now may be answered: strict reverse path filtering asks for ARP as well. */
	if (!(settings->idle & IDLE_VACATED) && skb->protocol == bpf_htons(ETH_P_ARP))
		set_other_mark(skb, settings);
	/* A tagged packet comes by again on its VLAN device. */
	if (skb->vlan_present || !parse(skb, network, skb->protocol, &packet))
		return pass();
	/* What a link brings to others says nothing of the way here. */
	if (!(settings->idle & IDLE_TRAFFIC) && skb->pkt_type != PACKET_OTHERHOST)
		note_coming(skb, &packet);
	if (!(settings->idle & IDLE_INTRODUCTIONS) && consume_introduction(skb, &packet, true))
		return TC_ACT_SHOT;
	if (settings->idle & IDLE_TRANSLATION)
		return pass();
	/* What turns out to be of a moved flow gets the mark of such. */
	if (!(settings->idle & IDLE_VACATED) && bpf_map_lookup_elem(&vacated, &packet.source))
		set_other_mark(skb, settings);
	if (!(settings->idle & IDLE_FORWARDED)) {
		if (packet.part != FRAGMENT_WHOLE && claim_fragment(skb, &packet))
			return pass();
		verdict = forward(skb, &packet);
		if (verdict == TO_BE_TOLD)
			return tell_far_end(skb, &packet);
		if (verdict != OF_NO_FLOW)
			return verdict;
	}
	if (packet.protocol == IPPROTO_TCP || packet.protocol == IPPROTO_UDP)
		verdict = ingress_flow(skb, &packet);
	else
		verdict = quotes_packet(skb, &packet) ? ingress_icmp(skb, &packet) : pass();
	if (verdict == TO_BE_REFUSED)
		return refuse(skb, &packet);
	/* What is of a flow has the mark already. */
	if (packet.protocol == IPPROTO_UDP && (skb->mark & settings->mark_mask) != settings->mark &&
	    is_of_path(skb, &packet))
		set_mark(skb, settings);
	if (verdict != TC_ACT_UNSPEC || (settings->idle & IDLE_BROUGHT) == IDLE_BROUGHT)
		return verdict;
	/* Under its own names by now. */
	return packet.led || read_packet(skb, network, &packet) ? bring(skb, &packet) : verdict;
}

/* Nothing has to be looked for in what the daemon writes to the TUN device. */
#define IDLE_INNER (IDLE_LAPSES | IDLE_HELPED | IDLE_DELIVERY | IDLE_INTRODUCTIONS | IDLE_UNCONNECTED)

#define IDLE_NAMED_INNER (IDLE_LAPSES | IDLE_HELPED | IDLE_UNCONNECTED)

/* Packets that the daemon took out of a tunnel and wrote to the TUN device, under the own tuple already. */
static __always_inline int ingress_inner(struct __sk_buff *skb)
{
	const struct settings *settings = get_settings();
	struct flow_tuple own = {};
	struct packet packet = {};

	if (!settings)
		return pass();
	set_mark(skb, settings);
	if ((settings->idle & IDLE_INNER) == IDLE_INNER || !parse(skb, 0, skb->protocol, &packet))
		return pass_counted(COUNTER_TUNNEL_IN);
	/* Of a flow that another host passes on. */
	if (!(settings->idle & IDLE_INTRODUCTIONS) && consume_introduction(skb, &packet, false))
		return TC_ACT_SHOT;
	if ((settings->idle & IDLE_NAMED_INNER) != IDLE_NAMED_INNER) {
		name_inbound(&own, &packet);
		if (!(settings->idle & IDLE_UNCONNECTED) && packet.protocol == IPPROTO_UDP) {
			struct flow_entry *flow = find_flow(&own);

			if (flow)
				hear_moved(flow);
		}
		if (!(settings->idle & IDLE_LAPSES) && !forget_lapse(skb, &packet, &own))
			return TC_ACT_SHOT;
		if (!raise(skb, &packet, &own))
			return TC_ACT_SHOT;
	}
	count(COUNTER_TUNNEL_IN);
	return (settings->idle & IDLE_BROUGHT) == IDLE_BROUGHT ? pass() : bring(skb, &packet);
}

/* What runs while introductions are expected and nothing has moved. */
static __always_inline int ingress_introductions(struct __sk_buff *skb, __u32 network)
{
	struct packet packet = {};

	if (skb->vlan_present || !parse(skb, network, skb->protocol, &packet))
		return pass();
	return consume_introduction(skb, &packet, true) ? TC_ACT_SHOT : pass();
}

#endif
