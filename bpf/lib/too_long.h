/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What an endpoint namespace sends and is too long for the host's route. The namespace knows of no route but the one out of
 * it, so it is told as by a router (RFC 1191, RFC 8201): the packet becomes the error about itself, and goes back in.
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

/*
 * `quoted` bytes of the packet, a constant, go behind the error's header, of ICMP_WORDS words, and a new IP header before
 * both. What has options or extension headers is dropped.
 */
static __always_inline bool quote_ipv4(struct __sk_buff *skb, __u32 quoted, __u32 mtu)
{
	__be32 message[ICMP_WORDS + (sizeof(struct iphdr) + sizeof(struct tcphdr)) / 4] = {};
	struct iphdr ip = {};

	if (bpf_skb_load_bytes(skb, ETH_HLEN, message + ICMP_WORDS, quoted))
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
	return !bpf_skb_change_tail(skb, ETH_HLEN + quoted, 0) &&
	       !bpf_skb_adjust_room(skb, sizeof(ip) + ICMP_WORDS * 4, BPF_ADJ_ROOM_MAC, 0) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN + sizeof(ip), message, ICMP_WORDS * 4, 0);
}

static __always_inline bool quote_ipv6(struct __sk_buff *skb, __u32 quoted, __u32 mtu)
{
	__be32 message[ICMP_WORDS + (sizeof(struct ipv6hdr) + sizeof(struct tcphdr)) / 4] = {};
	/* Of the pseudo-header (RFC 8200 section 8.1): what is not there anyway. The addresses sum to the same turned round. */
	__be32 pseudo[2] = { bpf_htonl(ICMP_WORDS * 4 + quoted), bpf_htonl(IPPROTO_ICMPV6) };
	struct ipv6hdr ip = {};
	__u32 sum;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, message + ICMP_WORDS, quoted))
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
	return !bpf_skb_change_tail(skb, ETH_HLEN + quoted, 0) &&
	       !bpf_skb_adjust_room(skb, sizeof(ip) + ICMP_WORDS * 4, BPF_ADJ_ROOM_MAC, 0) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN + sizeof(ip), message, ICMP_WORDS * 4, 0);
}

/* `skb->cb[0]`: what the route takes, in bytes. */
__noinline int tell_too_long(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 network;
	bool told;

	count(COUNTER_TOO_LONG);
	if (!packet)
		return TC_ACT_SHOT;
	network = packet->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	/* TCP's header as a whole: a packet whose checksum has still to be filled in must not be cut before it. */
	if (packet->transport != ETH_HLEN + network || packet->part != FRAGMENT_WHOLE)
		return TC_ACT_SHOT;
	if (packet->family == 4)
		told = packet->protocol == IPPROTO_TCP ?
			       quote_ipv4(skb, sizeof(struct iphdr) + sizeof(struct tcphdr), skb->cb[0]) :
			       quote_ipv4(skb, sizeof(struct iphdr) + sizeof(struct udphdr), skb->cb[0]);
	else
		told = packet->protocol == IPPROTO_TCP ?
			       quote_ipv6(skb, sizeof(struct ipv6hdr) + sizeof(struct tcphdr), skb->cb[0]) :
			       quote_ipv6(skb, sizeof(struct ipv6hdr) + sizeof(struct udphdr), skb->cb[0]);
	if (!told || bpf_skb_change_type(skb, 0 /* PACKET_HOST */))
		return TC_ACT_SHOT;
	return bpf_redirect_peer(skb->ifindex, 0);
}

#endif
