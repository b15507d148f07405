/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From a packet to its addresses, ports and offsets. */
#ifndef WHIMBREL_PARSE_H
#define WHIMBREL_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "address.h"

/* More IPv6 extension headers than anything in use sends (RFC 8200 section 4.1 recommends at most one of each). */
#define MAX_EXTENSION_HEADERS 6

#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV6_FRAGMENT_OFFSET 0xfff8
#define IPV6_MORE_FRAGMENTS 0x0001

enum fragment_part {
	FRAGMENT_WHOLE = 0,
	FRAGMENT_FIRST,
	FRAGMENT_LATER, /* has no transport header */
};

/* Where a packet comes from that is treated as one that goes out. */
enum origin {
	FROM_STACK = 0,
	FROM_ENDPOINT, /* an endpoint namespace; seen on the ingress of the outer end of its pair */
	FROM_WIRE,     /* another host; seen on the ingress of a device */
};

struct packet {
	struct address source;
	struct address destination;
	__be16 source_port; /* TCP and UDP; 0 in later fragments */
	__be16 destination_port;
	__u32 network;	 /* offset of the IP header */
	__u32 transport; /* offset of what follows it and its extensions */
	__u32 end;	 /* offset of the end of the IP packet, as its header says; 0 for a jumbogram or BIG TCP */
	__u32 identification;
	__u16 checksum; /* of the IPv4 header, as it stands there */
	__u8 family;	/* 4 or 6 */
	__u8 protocol;
	__u8 part; /* enum fragment_part */
	__u8 origin; /* enum origin */
	__u8 hop_limit; /* as it came */
	__u8 led; /* 1: it was restored, `delivery` says where to, and its names here are those that it has now */
	__u32 delivery;
};

/*
 * The bytes at `offset` if they lie in the linear part of the packet, where it costs nothing to look at them; headers
 * do, all but always.
 */
static __always_inline const void *peek(const struct __sk_buff *skb, __u32 offset, __u32 size)
{
	const void *data = (const void *)(long)skb->data, *end = (const void *)(long)skb->data_end;
	const void *at;

	/* The verifier wants to know that the sum does not overflow; headers end long before this. */
	if (offset > 0x7ff)
		return NULL;
	at = data + offset;
	return at + size <= end ? at : NULL;
}

static __always_inline bool parse_ipv4(struct __sk_buff *skb, __u32 network, struct packet *packet)
{
	const struct iphdr *ip = peek(skb, network, sizeof(*ip));
	struct iphdr copy;
	__u32 offset;

	if (!ip) {
		if (bpf_skb_load_bytes(skb, network, &copy, sizeof(copy)))
			return false;
		ip = &copy;
	}
	if (ip->version != 4 || ip->ihl < 5)
		return false;
	packet->family = 4;
	packet->protocol = ip->protocol;
	packet->hop_limit = ip->ttl;
	packet->network = network;
	packet->transport = network + ip->ihl * 4;
	packet->end = ip->tot_len ? network + bpf_ntohs(ip->tot_len) : 0;
	packet->identification = ip->id;
	packet->checksum = ip->check;
	map_ipv4(&packet->source, ip->saddr);
	map_ipv4(&packet->destination, ip->daddr);
	offset = bpf_ntohs(ip->frag_off);
	if (offset & IPV4_FRAGMENT_OFFSET)
		packet->part = FRAGMENT_LATER;
	else if (offset & IPV4_MORE_FRAGMENTS)
		packet->part = FRAGMENT_FIRST;
	else
		packet->part = FRAGMENT_WHOLE;
	return true;
}

static __always_inline bool parse_ipv6(struct __sk_buff *skb, __u32 network, struct packet *packet)
{
	const struct ipv6hdr *ip = peek(skb, network, sizeof(*ip));
	__u32 offset = network + sizeof(*ip);
	struct ipv6hdr copy;
	__u8 next;

	if (!ip) {
		if (bpf_skb_load_bytes(skb, network, &copy, sizeof(copy)))
			return false;
		ip = &copy;
	}
	if (ip->version != 6)
		return false;
	packet->family = 6;
	packet->network = network;
	packet->end = ip->payload_len ? offset + bpf_ntohs(ip->payload_len) : 0;
	packet->part = FRAGMENT_WHOLE;
	packet->hop_limit = ip->hop_limit;
	__builtin_memcpy(&packet->source, &ip->saddr, sizeof(packet->source));
	__builtin_memcpy(&packet->destination, &ip->daddr, sizeof(packet->destination));
	next = ip->nexthdr;
#pragma unroll
	for (int i = 0; i < MAX_EXTENSION_HEADERS; i++) {
		__u8 header[8];

		if (next == IPPROTO_TCP || next == IPPROTO_UDP || next == IPPROTO_ICMPV6)
			break;
		/*
		 * A routing header keeps the final destination elsewhere, and authentication covers the addresses:
		 * such packets are not ours.
		 */
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_DSTOPTS && next != IPPROTO_FRAGMENT)
			return false;
		if (bpf_skb_load_bytes(skb, offset, header, sizeof(header)))
			return false;
		if (next == IPPROTO_FRAGMENT) {
			__u32 field = (header[2] << 8) | header[3];

			packet->identification = (__u32)header[4] << 24 | (__u32)header[5] << 16 |
						 (__u32)header[6] << 8 | header[7];
			if (field & IPV6_FRAGMENT_OFFSET)
				packet->part = FRAGMENT_LATER;
			else if (field & IPV6_MORE_FRAGMENTS)
				packet->part = FRAGMENT_FIRST;
			next = header[0];
			offset += 8;
			/* Nothing that could be read as a header follows in a later fragment. */
			if (packet->part == FRAGMENT_LATER)
				break;
		} else {
			next = header[0];
			offset += (header[1] + 1) * 8;
		}
	}
	packet->protocol = next;
	packet->transport = offset;
	return true;
}

/* Fills `packet`, which is zeroed. False: not IP, or of a shape that is never ours. */
static __always_inline bool parse(struct __sk_buff *skb, __u32 network, __be16 protocol, struct packet *packet)
{
	bool ok;

	if (protocol == bpf_htons(ETH_P_IP))
		ok = parse_ipv4(skb, network, packet);
	else if (protocol == bpf_htons(ETH_P_IPV6))
		ok = parse_ipv6(skb, network, packet);
	else
		return false;
	if (!ok)
		return false;
	if ((packet->protocol == IPPROTO_TCP || packet->protocol == IPPROTO_UDP) && packet->part != FRAGMENT_LATER) {
		const __be16 *ports = peek(skb, packet->transport, 4);
		__be16 copy[2];

		if (!ports) {
			if (bpf_skb_load_bytes(skb, packet->transport, copy, sizeof(copy)))
				return false;
			ports = copy;
		}
		packet->source_port = ports[0];
		packet->destination_port = ports[1];
	}
	return true;
}

/* The longest packet that the wire sees of this one, in bytes: a segment where it is many. 0: unknown. */
static __always_inline __u32 longest_part(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 size = skb->gso_size, headers = packet->transport - packet->network;
	__u8 length;

	if (!size)
		return packet->end ? packet->end - packet->network : 0;
	if (packet->protocol != IPPROTO_TCP)
		return headers + sizeof(struct udphdr) + size;
	if (bpf_skb_load_bytes(skb, packet->transport + 12, &length, sizeof(length)))
		return 0;
	return headers + (length >> 4) * 4 + size;
}

/* Does this ICMP message quote the packet that caused it (RFC 792, RFC 4443 section 3)? */
static __always_inline bool quotes_packet(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 type;

	if (packet->part != FRAGMENT_WHOLE)
		return false;
	if (packet->family == 4 ? packet->protocol != IPPROTO_ICMP : packet->protocol != IPPROTO_ICMPV6)
		return false;
	if (bpf_skb_load_bytes(skb, packet->transport, &type, sizeof(type)))
		return false;
	if (packet->family == 4)
		return type == 3 || type == 11 || type == 12;
	return type >= 1 && type <= 4;
}

#define TCP_FLAGS 13
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* The first segment of a connection. No flow has one: those that are introduced are open. */
static __always_inline bool opens_connection(struct __sk_buff *skb, const struct packet *packet)
{
	const __u8 *flags;
	__u8 copy = 0;

	if (packet->protocol != IPPROTO_TCP || packet->part == FRAGMENT_LATER)
		return false;
	flags = peek(skb, packet->transport + TCP_FLAGS, 1);
	if (!flags) {
		if (bpf_skb_load_bytes(skb, packet->transport + TCP_FLAGS, &copy, 1))
			return false;
		flags = &copy;
	}
	return (*flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_SYN;
}

#endif
