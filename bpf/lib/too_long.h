/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What is too long for the way that it is led by, and was not sent by this host's own stack, whose routes say so. Its
 * sender is told as by a router (RFC 1191, RFC 8201): the packet becomes the error about itself, in the name of the end
 * that it was for.
 */
#ifndef WHIMBREL_TOO_LONG_H
#define WHIMBREL_TOO_LONG_H

#include <stddef.h>
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "csum.h"
#include "parse.h"
#include "verdict.h"

#define ICMP_HOPS 64
#define ICMP_WORDS 2
#define FRAGMENT_HEADER 8

/*
 * `quoted` bytes of the packet at `network`, a constant number of them, go behind the error's header, of ICMP_WORDS
 * words, and a new IP header before both.
 */
static __always_inline bool quote_ipv4(struct __sk_buff *skb, __u32 network, __u32 quoted, __u32 mtu)
{
	__be32 message[ICMP_WORDS + (sizeof(struct iphdr) + sizeof(struct tcphdr)) / 4] = {};
	struct iphdr ip = {};

	if (bpf_skb_load_bytes(skb, network, message + ICMP_WORDS, quoted))
		return false;
	/* Destination unreachable, fragmentation needed (RFC 1191 section 4). */
	message[0] = bpf_htonl(0x03040000);
	message[1] = bpf_htonl(mtu);
	message[0] |= bpf_htonl(bpf_ntohs(csum_fold(csum_fold64(bpf_csum_diff(0, 0, message, ICMP_WORDS * 4 + quoted, 0)))));
	ip.version = 4;
	ip.ihl = 5;
	ip.tot_len = bpf_htons(sizeof(ip) + ICMP_WORDS * 4 + quoted);
	ip.ttl = ICMP_HOPS;
	ip.protocol = IPPROTO_ICMP;
	ip.saddr = message[ICMP_WORDS + 4];
	ip.daddr = message[ICMP_WORDS + 3];
	ip.check = csum_fold(csum_fold64(bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof(ip), 0)));
	return !bpf_skb_change_tail(skb, network + quoted, 0) &&
	       !bpf_skb_adjust_room(skb, sizeof(ip) + ICMP_WORDS * 4, BPF_ADJ_ROOM_MAC, 0) &&
	       !bpf_skb_store_bytes(skb, network, &ip, sizeof(ip), 0) &&
	       !bpf_skb_store_bytes(skb, network + sizeof(ip), message, ICMP_WORDS * 4, 0);
}

static __always_inline bool quote_ipv6(struct __sk_buff *skb, __u32 network, __u32 quoted, __u32 mtu)
{
	__be32 message[ICMP_WORDS + (sizeof(struct ipv6hdr) + sizeof(struct tcphdr)) / 4] = {};
	/*
	 * Of the pseudo-header (RFC 8200 section 8.1): what is not there anyway. The addresses sum to the same turned
	 * round.
	 */
	__be32 pseudo[2] = { bpf_htonl(ICMP_WORDS * 4 + quoted), bpf_htonl(IPPROTO_ICMPV6) };
	struct ipv6hdr ip = {};
	__u32 sum;

	if (bpf_skb_load_bytes(skb, network, message + ICMP_WORDS, quoted))
		return false;
	/* Packet too big (RFC 4443 section 3.2). */
	message[0] = bpf_htonl(0x02000000);
	message[1] = bpf_htonl(mtu);
	__builtin_memcpy(&ip.daddr, message + ICMP_WORDS + 2, 16);
	__builtin_memcpy(&ip.saddr, message + ICMP_WORDS + 6, 16);
	sum = csum_fold64(bpf_csum_diff(0, 0, pseudo, sizeof(pseudo), 0));
	sum = csum_fold64(bpf_csum_diff(0, 0, message + ICMP_WORDS + 2, 32, sum));
	sum = csum_fold64(bpf_csum_diff(0, 0, message, ICMP_WORDS * 4 + quoted, sum));
	message[0] |= bpf_htonl(bpf_ntohs(csum_fold(sum)));
	ip.version = 6;
	ip.payload_len = bpf_htons(ICMP_WORDS * 4 + quoted);
	ip.nexthdr = IPPROTO_ICMPV6;
	ip.hop_limit = ICMP_HOPS;
	return !bpf_skb_change_tail(skb, network + quoted, 0) &&
	       !bpf_skb_adjust_room(skb, sizeof(ip) + ICMP_WORDS * 4, BPF_ADJ_ROOM_MAC, 0) &&
	       !bpf_skb_store_bytes(skb, network, &ip, sizeof(ip), 0) &&
	       !bpf_skb_store_bytes(skb, network + sizeof(ip), message, ICMP_WORDS * 4, 0);
}

/* The packet becomes the error about itself. What has options or other extension headers is left. */
static __always_inline bool quote(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 network = packet->network, header = packet->transport - network, mtu = skb->cb[0];
	bool tcp = packet->protocol == IPPROTO_TCP;

	/* TCP's header as a whole: a packet whose checksum has still to be filled in must not be cut before it. */
	if (packet->part == FRAGMENT_LATER)
		return false;
	if (packet->family == 4)
		return header == sizeof(struct iphdr) &&
		       (tcp ? quote_ipv4(skb, network, sizeof(struct iphdr) + sizeof(struct tcphdr), mtu) :
			      quote_ipv4(skb, network, sizeof(struct iphdr) + sizeof(struct udphdr), mtu));
	if (header == sizeof(struct ipv6hdr))
		return tcp ? quote_ipv6(skb, network, sizeof(struct ipv6hdr) + sizeof(struct tcphdr), mtu) :
			     quote_ipv6(skb, network, sizeof(struct ipv6hdr) + sizeof(struct udphdr), mtu);
	return header == sizeof(struct ipv6hdr) + FRAGMENT_HEADER && !tcp && packet->part == FRAGMENT_FIRST &&
	       quote_ipv6(skb, network, sizeof(struct ipv6hdr) + FRAGMENT_HEADER + sizeof(struct udphdr), mtu);
}

/* To an endpoint namespace, which knows of no route but the one out of it. `skb->cb[0]`: what may be sent, in bytes. */
__noinline int send_too_long(struct __sk_buff *skb, const struct packet *packet)
{
	count(COUNTER_TOO_LONG);
	if (!packet || !quote(skb, packet) || bpf_skb_change_type(skb, 0 /* PACKET_HOST */))
		return TC_ACT_SHOT;
	return bpf_redirect_peer(skb->ifindex, 0);
}

/*
 * To another host, whose packet this one forwards, and which is on that side of it that `back` says: BPF_F_INGRESS,
 * behind it, as if the end that the packet was for had said so by the tunnel; 0, who has that end, as if the far end
 * had.
 */
static __always_inline int tell_back(struct __sk_buff *skb, const struct packet *packet, __u32 tunnel, __u64 back)
{
	count(COUNTER_TOO_LONG);
	if (!tunnel || !quote(skb, packet) || bpf_skb_change_type(skb, 0 /* PACKET_HOST */))
		return TC_ACT_SHOT;
	skb->tc_index = 0;
	return bpf_redirect(tunnel, back);
}

/* To the far end of a flow whose local end is at another host. */
__noinline int tell_far_end(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = get_settings();

	return packet && settings ? tell_back(skb, packet, settings->tunnel, BPF_F_INGRESS) : TC_ACT_SHOT;
}

/* To the host that has the local end. */
__noinline int tell_owner(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = get_settings();

	return packet && settings ? tell_back(skb, packet, settings->tunnel, 0) : TC_ACT_SHOT;
}

#endif
