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
#include "parse.h"

/*
 * Value of skb->tc_index of packets that egress has translated and sent through a device's egress again: one
 * translation is enough, since a wire tuple may also be some other flow's own tuple.
 */
#define TRANSLATED 0x5742

static __always_inline int pass(void)
{
	return TC_ACT_UNSPEC;
}

static __always_inline int pass_counted(__u32 counter)
{
	count(counter);
	return TC_ACT_UNSPEC;
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

/* Hand to the TUN device, as the socket made it. */
static __always_inline int to_tunnel(__u32 interface)
{
	count(COUNTER_TUNNELLED_OUT);
	return bpf_redirect(interface, 0);
}

/*
 * Send a translated packet by the device and next hop that its new names ask for. bpf_redirect_neigh replaces an
 * Ethernet header and insists on one.
 *
 * A function of its own, so that its variables are not on the stack beside its callers': Linux 6.1 counts every frame up
 * to a multiple of 32 bytes, and allows 512 in all.
 */
static __noinline int to_wire(struct __sk_buff *skb, const struct packet *packet, const struct binding *binding,
			      __u32 counter)
{
	const struct settings *settings = get_settings();
	__u32 interface;

	if (!packet || !binding || !settings)
		return drop(COUNTER_DROPPED_REWRITE);
	if (!packet->network && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return drop(COUNTER_DROPPED_REWRITE);
	interface = binding->interface;
	skb->tc_index = TRANSLATED;
	if (!interface) {
		struct bpf_fib_lookup fib = {};
		struct bpf_redir_neigh next_hop = {};
		long found;

		fib.ifindex = skb->ifindex;
		fib.l4_protocol = packet->protocol;
		if (packet->family == 4) {
			fib.family = 2; /* AF_INET */
			fib.ipv4_src = binding->local.words[3];
			fib.ipv4_dst = binding->peer.words[3];
		} else {
			fib.family = 10; /* AF_INET6 */
			__builtin_memcpy(fib.ipv6_src, &binding->local, 16);
			__builtin_memcpy(fib.ipv6_dst, &binding->peer, 16);
		}
		found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
		if (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH) {
			next_hop.nh_family = fib.family;
			__builtin_memcpy(next_hop.ipv6_nh, fib.ipv6_dst, 16);
			count(counter);
			return bpf_redirect_neigh(fib.ifindex, &next_hop, sizeof(next_hop), 0);
		}
		/* The lookup is made for routers and refuses where forwarding is off: stay on this device. */
		interface = skb->ifindex;
		if (interface == settings->tunnel)
			return hold(COUNTER_DROPPED_ROUTE);
	}
	count(counter);
	/* Without a next hop it makes a full output route lookup for the packet's new names on that device. */
	return bpf_redirect_neigh(interface, 0, 0, 0);
}

#endif
