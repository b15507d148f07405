// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Entry points on tc. Devices with an Ethernet header (`_l2`) and without one (`_l3`: TUN, WireGuard, PPP, raw IP) each
 * have their own, since a program cannot ask where the IP header starts.
 *
 * Functions in lib/ that are not inlined are global, not static: the verifier looks at a global function once, with any
 * arguments, and at a static one again for each call and state. All programs load in a fifth of the time so. Small ones
 * stay static whose arguments are keys of maps: in a global function Linux 6.1 takes no argument for a key.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

#include "lib/egress.h"
#include "lib/endpoint.h"
#include "lib/ingress.h"

SEC("tc")
int egress_l2(struct __sk_buff *skb)
{
	return egress(skb, ETH_HLEN);
}

SEC("tc")
int egress_l3(struct __sk_buff *skb)
{
	return egress(skb, 0);
}

SEC("tc")
int ingress_l2(struct __sk_buff *skb)
{
	return ingress(skb, ETH_HLEN);
}

SEC("tc")
int ingress_l3(struct __sk_buff *skb)
{
	return ingress(skb, 0);
}

SEC("tc")
int introductions_l2(struct __sk_buff *skb)
{
	return ingress_introductions(skb, ETH_HLEN);
}

SEC("tc")
int introductions_l3(struct __sk_buff *skb)
{
	return ingress_introductions(skb, 0);
}

SEC("tc")
int datagrams_l2(struct __sk_buff *skb)
{
	return egress_datagrams(skb, ETH_HLEN);
}

SEC("tc")
int datagrams_l3(struct __sk_buff *skb)
{
	return egress_datagrams(skb, 0);
}

SEC("tc")
int endpoint(struct __sk_buff *skb)
{
	return leave_endpoint(skb);
}

SEC("tc")
int egress_local(struct __sk_buff *skb)
{
	return egress_loopback(skb);
}

SEC("tc")
int ingress_tunnel(struct __sk_buff *skb)
{
	return ingress_inner(skb);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
