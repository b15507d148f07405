/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The ways a packet can leave a program. Every one but pass() counts a reason.
 *
 * The same program runs under tcx and as a clsact filter. TC_ACT_UNSPEC (TCX_NEXT) lets whatever comes after it on the
 * device have its say in both. TC_ACT_STOLEN means nothing to tcx (net/core/dev.c, tcx_action_code), so a packet is
 * taken silently by redirecting it to a device that does not exist: the kernel frees it and reports success to the
 * sender, in both.
 */
#ifndef WHIMBREL_VERDICT_H
#define WHIMBREL_VERDICT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "address.h"
#include "parse.h"
#include "rewrite.h"

/*
 * Value of skb->tc_index of packets that egress has translated and sent through a device's egress again: one
 * translation is enough, since a wire tuple may also be some other flow's own tuple.
 */
#define TRANSLATED 0x5742
/* The same of packets whose numbers ingress has translated, or that are in the socket's numbers already. */
#define RENUMBERED 0x5743
/* The same of packets that were led home: a device beneath that one is no other network. */
#define LED_HOME 0x5748

/*
 * No verdicts of tc: what the entry point is to do. Called from where that is found out, it would make the frames on
 * the stack more than Linux 6.1 allows (see to_wire).
 */
enum unfinished {
	TO_BE_REFUSED = 0x5744, /* refuse() */
	OF_NO_FLOW,		/* of a packet that is not from this host's own stack */
	TO_BE_ROUTED,		/* to_routes() */
	TO_BE_TOLD,		/* send_too_long() */
	TO_BE_LED_HOME,		/* lead_home() */
};

static __always_inline int pass(void)
{
	return TC_ACT_UNSPEC;
}

static __always_inline int pass_counted(__u32 counter)
{
	count(counter);
	return TC_ACT_UNSPEC;
}

/*
 * The mark that says "looked at, and not of a moved flow": routing rules of ours pass such packets over, so they go,
 * and are checked to have come, by the ordinary routes.
 */
static __always_inline void set_other_mark(struct __sk_buff *skb, const struct settings *settings)
{
	skb->mark = (skb->mark & ~settings->mark_mask) | (settings->mark_mask & ~settings->mark);
}

/* Drop, and let the sender's TCP know: it tries again soon, without backing off. */
static __always_inline int drop(__u32 counter)
{
	count(counter);
	return TC_ACT_SHOT;
}

/* Drop without the sender's TCP noticing, so that its back-off stays as it is. */
static __always_inline int hold(__u32 counter)
{
	count(counter);
	return bpf_redirect(0, 0);
}

/*
 * Of no moved flow, on any device: routes lead what is for an address that a moved peer has left, and what is from one
 * that this host has left, where the moved flows go. The former is sent to the owner of today, by the link that the
 * address is on; the latter nowhere, since a NAT there would give it another name, and the peer reset that. Without
 * such a link the daemon gets what is on the TUN device, and drops it.
 */
__noinline int pass_ordinary(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = get_settings();
	struct address address;
	__u32 *interface;

	if (packet && packet->origin != FROM_STACK)
		return OF_NO_FLOW;
	if (!packet || !settings || (settings->idle & (IDLE_VACATED | IDLE_KEPT)) == (IDLE_VACATED | IDLE_KEPT))
		return pass();
	/* What is forwarded is another host's, and what was looked at goes its way. */
	if (skb->ingress_ifindex || (skb->mark & settings->mark_mask) == (settings->mark_mask & ~settings->mark))
		return pass();
	address = packet->source;
	if (!(settings->idle & IDLE_KEPT) && skb->ifindex != settings->tunnel && bpf_map_lookup_elem(&kept, &address))
		return hold(COUNTER_HELD_KEPT);
	if (settings->idle & IDLE_VACATED)
		return pass();
	address = packet->destination;
	interface = bpf_map_lookup_elem(&vacated, &address);
	if (!interface || (!packet->network && bpf_skb_change_head(skb, ETH_HLEN, 0)))
		return pass();
	set_other_mark(skb, settings);
	count(COUNTER_VACATED_OUT);
	return bpf_redirect_neigh(*interface, 0, 0, 0);
}

/* Hand to the TUN device, as the socket made it. */
static __always_inline int to_tunnel(struct __sk_buff *skb, const struct packet *packet, __u32 interface, __u32 counter)
{
	if (packet->origin == FROM_WIRE && !lower_hop_limit(skb, packet))
		return drop(COUNTER_EXPIRED);
	count(counter);
	return bpf_redirect(interface, 0);
}

/* For how long a next hop once found out is relied on: by then the kernel may route the peer's locator otherwise. */
#define NEIGHBOUR_NS 200000000ULL

/*
 * Where packets from one address to another leave that came in by one device. Whoever forwards needs it for each
 * packet, and to look it up, the neighbour with it, costs as much as all the rest. Relied on as long as a next hop is;
 * in between each packet that is looked up for goes through the kernel's own neighbour output, so that the kernel goes
 * on asking whether that is there.
 */
struct way {
	struct address source;
	struct address destination;
	__u64 until;	 /* CLOCK_MONOTONIC, ns */
	__u32 arrival;	 /* the device that they came in by */
	__u32 interface; /* that by which they leave */
	__u32 longest;	 /* may be sent, in bytes; 0: not asked */
	__u8 to[ETH_ALEN]; /* the Ethernet header's beginning */
	__u8 from[ETH_ALEN];
};

#define WAYS 128

/* Each entry has its place, where it replaces whatever was there. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WAYS);
	__type(key, __u32);
	__type(value, struct way);
} ways SEC(".maps");

static __always_inline struct way *place_of_way(const struct address *source, const struct address *destination)
{
	__u32 place = destination->words[3] + 3 * destination->words[2] + 5 * source->words[3];

	/* A multiplication mixes upwards. */
	place = (place * 0x9e3779b1U) >> 25;
	return bpf_map_lookup_elem(&ways, &place);
}

static __always_inline bool is_way_known(const struct way *way, __u32 arrival, const struct address *source,
					 const struct address *destination)
{
	return way->arrival == arrival && same_address(&way->destination, destination) &&
	       same_address(&way->source, source) && way->until > bpf_ktime_get_coarse_ns();
}

static __always_inline void note_way(struct way *way, __u32 arrival, const struct address *source,
				     const struct address *destination, __u32 interface, const __u8 *to, const __u8 *from,
				     __u32 longest)
{
	way->source = *source;
	way->destination = *destination;
	way->arrival = arrival;
	way->interface = interface;
	way->longest = longest;
	__builtin_memcpy(way->to, to, ETH_ALEN);
	__builtin_memcpy(way->from, from, ETH_ALEN);
	way->until = bpf_ktime_get_coarse_ns() + NEIGHBOUR_NS;
}

/* A packet with room for an Ethernet header. A device that has none takes it off. */
static __always_inline int go(struct __sk_buff *skb, const struct packet *packet, const struct way *way)
{
	__be16 protocol = skb->protocol;

	if (bpf_skb_store_bytes(skb, 0, way->to, 2 * ETH_ALEN, 0))
		return drop(COUNTER_DROPPED_ROUTE);
	if (!packet->network && bpf_skb_store_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol), 0))
		return drop(COUNTER_DROPPED_ROUTE);
	return bpf_redirect(way->interface, 0);
}

/* Whose next hop is to be noted when the packet that is now being sent again comes by. */
struct asking {
	__u32 binding;
	__u32 asked;
	__u32 arrival; /* the device that it came in by; 0: it is this host's own */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct asking);
} asking SEC(".maps");

static __always_inline struct asking *get_asking(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&asking, &zero);
}

static __always_inline void ask_next_hop(__u32 binding, __u32 arrival)
{
	struct asking *asking = get_asking();

	if (asking) {
		asking->binding = binding;
		asking->arrival = arrival;
		asking->asked = 1;
	}
}

/* The way of a packet that came by this device and that a router would pass on between the two: BPF_FIB_LKUP_RET_…. */
static __always_inline long find_way(struct __sk_buff *skb, struct bpf_fib_lookup *fib, __u8 protocol,
				     const struct address *source, const struct address *destination)
{
	fib->ifindex = skb->ifindex;
	fib->l4_protocol = protocol;
	if (is_ipv4(destination)) {
		fib->family = 2; /* AF_INET */
		fib->ipv4_src = source->words[3];
		fib->ipv4_dst = destination->words[3];
	} else {
		fib->family = 10; /* AF_INET6 */
		__builtin_memcpy(fib->ipv6_src, source, 16);
		__builtin_memcpy(fib->ipv6_dst, destination, 16);
	}
	return bpf_fib_lookup(skb, fib, sizeof(*fib), 0);
}

/*
 * Would this packet, under its new names, leave just as it is going to: by the same device, to the same gateway? For a
 * peer that moved somewhere beyond the gateway it would, and sending it again costs more than all the rest. Whether it
 * would is seen on packets that are sent again (note_next_hop).
 */
static __always_inline bool next_hop_stays(const struct __sk_buff *skb, const struct binding *binding, __u32 id)
{
	const __be16 *to = peek(skb, 0, ETH_ALEN), *known = (const __be16 *)binding->neighbour;

	if (binding->neighbour_until > bpf_ktime_get_coarse_ns())
		return to && binding->neighbour_interface == skb->ifindex && to[0] == known[0] && to[1] == known[1] &&
		       to[2] == known[2];
	ask_next_hop(id, 0);
	return false;
}

/* A packet that to_wire sent again comes by with its new Ethernet header. */
static __always_inline void note_next_hop(struct __sk_buff *skb)
{
	struct asking *asking = get_asking();
	struct ethhdr ethernet;
	struct binding *binding;
	__u32 id;

	if (!asking || !asking->asked)
		return;
	asking->asked = 0;
	id = asking->binding;
	binding = bpf_map_lookup_elem(&bindings, &id);
	if (!binding || bpf_skb_load_bytes(skb, 0, &ethernet, sizeof(ethernet)))
		return;
	/* Another packet may have come between, if this one had to wait for its neighbour. */
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		__be32 destination;

		if (bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct iphdr, daddr), &destination, 4) ||
		    destination != binding->peer.words[3])
			return;
	} else {
		struct address destination;

		if (bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, daddr), &destination, 16) ||
		    !same_address(&destination, &binding->peer))
			return;
	}
	if (asking->arrival) {
		struct way *way = place_of_way(&binding->local, &binding->peer);

		if (way)
			note_way(way, asking->arrival, &binding->local, &binding->peer, skb->ifindex, ethernet.h_dest,
				 ethernet.h_source, 0);
		return;
	}
	/* Two processors may mix their addresses: no packet bears that then, and it is sent again. */
	__builtin_memcpy(binding->neighbour, ethernet.h_dest, ETH_ALEN);
	binding->neighbour_interface = skb->ifindex;
	binding->neighbour_until = bpf_ktime_get_coarse_ns() + NEIGHBOUR_NS;
}

/*
 * Send a translated packet by the device and next hop that its new names ask for. bpf_redirect_neigh replaces an
 * Ethernet header and insists on one.
 *
 * A function of its own, so that its variables are not on the stack beside its callers': Linux 6.1 counts every frame
 * up to a multiple of 32 bytes, and allows 512 in all.
 */
__noinline int to_wire(struct __sk_buff *skb, const struct packet *packet, const struct binding *binding,
			      __u32 id, __u32 counter)
{
	const struct settings *settings = get_settings();
	__u32 interface;
	bool stays;

	if (!packet || !binding || !settings)
		return drop(COUNTER_DROPPED_REWRITE);
	if (packet->origin == FROM_WIRE && !lower_hop_limit(skb, packet))
		return drop(COUNTER_EXPIRED);
	interface = binding->interface;
	skb->tc_index = TRANSLATED;
	/* What came in has to be sent, even by the device that it came by. */
	stays = packet->origin == FROM_STACK && skb->ifindex != settings->tunnel && (!interface || interface == skb->ifindex);
	/* Without link headers there is one way only. */
	if (stays && (!packet->network || next_hop_stays(skb, binding, id)))
		return pass_counted(counter);
	if (!packet->network && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return drop(COUNTER_DROPPED_REWRITE);
	count(COUNTER_REDIRECTED_OUT);
	if (packet->origin != FROM_STACK) {
		const struct way *way = place_of_way(&binding->local, &binding->peer);

		if (way && is_way_known(way, skb->ifindex, &binding->local, &binding->peer) &&
		    (!interface || interface == way->interface)) {
			count(counter);
			return go(skb, packet, way);
		}
		ask_next_hop(id, skb->ifindex);
	}
	if (!interface) {
		struct bpf_fib_lookup fib = {};
		struct bpf_redir_neigh next_hop = {};
		long found;

		found = find_way(skb, &fib, packet->protocol, &binding->local, &binding->peer);
		if (found == BPF_FIB_LKUP_RET_FWD_DISABLED && packet->origin == FROM_WIRE && settings->tunnel) {
			fib.ifindex = settings->tunnel;
			found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
		}
		if (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH) {
			next_hop.nh_family = fib.family;
			__builtin_memcpy(next_hop.ipv6_nh, fib.ipv6_dst, 16);
			count(counter);
			return bpf_redirect_neigh(fib.ifindex, &next_hop, sizeof(next_hop), 0);
		}
		/* The lookup is made for routers and refuses where forwarding is off: stay on this device. */
		interface = skb->ifindex;
		if (interface == settings->tunnel || packet->origin == FROM_ENDPOINT)
			return hold(COUNTER_DROPPED_ROUTE);
	}
	count(counter);
	/* Without a next hop it makes a full output route lookup for the packet's new names on that device. */
	return bpf_redirect_neigh(interface, 0, 0, 0);
}

/*
 * Send what came in, as it stands now, by the route that its names ask for: as a router would, or as this host sends
 * its own where it is from an endpoint namespace, whose hop to here is within the host and does not count as one.
 *
 * The lookup is made for routers: it refuses where a packet came by a device that does not forward. The outer ends of
 * endpoint namespaces do (kernel::endpoint), and so has the TUN device to.
 */
__noinline int to_routes(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = get_settings();
	struct bpf_redir_neigh next_hop = {};
	struct bpf_fib_lookup fib = {};
	__u32 longest;
	struct way *way;
	long found;

	if (!packet || !settings)
		return drop(COUNTER_DROPPED_ROUTE);
	if (packet->origin != FROM_ENDPOINT && !lower_hop_limit(skb, packet))
		return drop(COUNTER_EXPIRED);
	longest = longest_part(skb, packet);
	way = place_of_way(&packet->source, &packet->destination);
	if (way && longest && longest <= way->longest &&
	    is_way_known(way, skb->ifindex, &packet->source, &packet->destination)) {
		skb->tc_index = TRANSLATED;
		if (!packet->network && bpf_skb_change_head(skb, ETH_HLEN, 0))
			return drop(COUNTER_DROPPED_ROUTE);
		count(packet->origin == FROM_ENDPOINT ? COUNTER_ENDPOINT_OUT : COUNTER_FORWARDED);
		return go(skb, packet, way);
	}
	fib.ifindex = skb->ifindex;
	fib.l4_protocol = packet->protocol;
	if (packet->family == 4) {
		fib.family = 2; /* AF_INET */
		found = bpf_skb_load_bytes(skb, packet->network + offsetof(struct iphdr, saddr), &fib.ipv4_src, 4) ||
			bpf_skb_load_bytes(skb, packet->network + offsetof(struct iphdr, daddr), &fib.ipv4_dst, 4);
	} else {
		fib.family = 10; /* AF_INET6 */
		found = bpf_skb_load_bytes(skb, packet->network + offsetof(struct ipv6hdr, saddr), fib.ipv6_src, 16) ||
			bpf_skb_load_bytes(skb, packet->network + offsetof(struct ipv6hdr, daddr), fib.ipv6_dst, 16);
	}
	if (found)
		return drop(COUNTER_DROPPED_ROUTE);
	/* Then what was learned of the path counts as well, and the route's MTU if it is locked, as for a router. */
	fib.tot_len = longest;
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (found == BPF_FIB_LKUP_RET_FWD_DISABLED && settings->tunnel) {
		fib.ifindex = settings->tunnel;
		found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	}
	if (found == BPF_FIB_LKUP_RET_NOT_FWDED) {
		/* For this host itself. To what it sees, it is nobody's who has come from a namespace. */
		if (packet->origin == FROM_ENDPOINT && bpf_skb_change_type(skb, 0 /* PACKET_HOST */))
			return drop(COUNTER_DROPPED_ROUTE);
		return pass_counted(packet->origin == FROM_ENDPOINT ? COUNTER_ENDPOINT_HOME : COUNTER_FORWARDED);
	}
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		skb->cb[0] = fib.mtu_result;
		return TO_BE_TOLD;
	}
	skb->tc_index = TRANSLATED;
	if (!packet->network && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return drop(COUNTER_DROPPED_ROUTE);
	if (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH) {
		/* Routes of ours lead there what is of moved flows; this is not, or is already under its new names. */
		if (fib.ifindex == settings->tunnel)
			return drop(COUNTER_DROPPED_ROUTE);
		/* Beyond its length it tells what the route takes. */
		if (way && found == BPF_FIB_LKUP_RET_SUCCESS && longest)
			note_way(way, skb->ifindex, &packet->source, &packet->destination, fib.ifindex, fib.dmac, fib.smac,
				 fib.mtu_result);
		next_hop.nh_family = fib.family;
		__builtin_memcpy(next_hop.ipv6_nh, fib.ipv6_dst, 16);
		count(packet->origin == FROM_ENDPOINT ? COUNTER_ENDPOINT_OUT : COUNTER_FORWARDED);
		return bpf_redirect_neigh(fib.ifindex, &next_hop, sizeof(next_hop), 0);
	}
	/* Nothing here forwards: who has one device sends by that one. */
	if (found != BPF_FIB_LKUP_RET_FWD_DISABLED || !packet->network || packet->origin == FROM_ENDPOINT)
		return drop(COUNTER_DROPPED_ROUTE);
	count(COUNTER_FORWARDED);
	return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
}

#endif
