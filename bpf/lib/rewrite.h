/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Changing the names in a packet, checksums included. Hop limits stay as they are. */
#ifndef WHIMBREL_REWRITE_H
#define WHIMBREL_REWRITE_H

#include <stddef.h>
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "csum.h"
#include "parse.h"

/* Offset of the checksum in ICMP and ICMPv6; <linux/icmp.h> needs the C library of a 32-bit target. */
#define ICMP_CHECKSUM 2

/* What a packet is to carry. */
struct names {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
};

static __always_inline bool same_names(const struct packet *packet, const struct names *names)
{
	return packet->source_port == names->source_port && packet->destination_port == names->destination_port &&
	       same_address(&packet->source, &names->source) &&
	       same_address(&packet->destination, &names->destination);
}

static __always_inline __u32 address_difference(const struct packet *packet, const struct names *names)
{
	__u64 sum = csum_word(packet->source.words[3], names->source.words[3]) +
		    csum_word(packet->destination.words[3], names->destination.words[3]);

	if (packet->family == 6)
		for (int i = 0; i < 3; i++)
			sum += csum_word(packet->source.words[i], names->source.words[i]) +
			       csum_word(packet->destination.words[i], names->destination.words[i]);
	return csum_fold64(sum);
}

/* The IP header's addresses and, IPv4, its checksum; `difference` as address_difference gives it. */
static __always_inline bool store_addresses(struct __sk_buff *skb, const struct packet *packet,
					    const struct names *names, __u32 difference, __u64 ipv6_flags)
{
	if (packet->family == 4) {
		/* The checksum is followed by the addresses. */
		struct {
			__u16 check;
			__be16 source[2];
			__be16 destination[2];
		} tail = { .check = csum_apply(packet->checksum, difference) };

		__builtin_memcpy(tail.source, &names->source.words[3], 4);
		__builtin_memcpy(tail.destination, &names->destination.words[3], 4);
		return !bpf_skb_store_bytes(skb, packet->network + offsetof(struct iphdr, check), &tail, sizeof(tail),
					    0);
	}
	return !bpf_skb_store_bytes(skb, packet->network + offsetof(struct ipv6hdr, saddr), names, 32, ipv6_flags);
}

static __always_inline __u32 checksum_offset(const struct packet *packet)
{
	return packet->transport + (packet->protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
								      offsetof(struct udphdr, check));
}

/* Puts a word of a TCP header in another's place, the checksum with it. */
static __always_inline bool replace_word(struct __sk_buff *skb, const struct packet *packet, __u32 offset, __be32 from,
					 __be32 to)
{
	if (from == to)
		return true;
	/* A partial checksum, which does not cover the header yet, is left as it is. */
	return !bpf_l4_csum_replace(skb, checksum_offset(packet), from, to, 4) &&
	       !bpf_skb_store_bytes(skb, packet->transport + offset, &to, sizeof(to), 0);
}

/*
 * As a router does with what it forwards, so that nothing goes round for ever (RFC 1812 section 5.3.1). False: it has
 * gone far enough.
 */
static __always_inline bool lower_hop_limit(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 hops = packet->hop_limit - 1;

	if (packet->hop_limit <= 1)
		return false;
	if (packet->family == 6)
		return !bpf_skb_store_bytes(skb, packet->network + offsetof(struct ipv6hdr, hop_limit), &hops,
					    sizeof(hops), BPF_F_RECOMPUTE_CSUM);
	/* A word in the checksum, with the protocol behind it. */
	return !bpf_l3_csum_replace(skb, packet->network + offsetof(struct iphdr, check),
				    bpf_htons(packet->hop_limit << 8), bpf_htons(hops << 8), sizeof(__be16)) &&
	       !bpf_skb_store_bytes(skb, packet->network + offsetof(struct iphdr, ttl), &hops, sizeof(hops), 0);
}

/* Gives a TCP or UDP packet other names. False: it may be half changed and has to be dropped. */
static __always_inline bool rename_packet(struct __sk_buff *skb, const struct packet *packet,
					  const struct names *names)
{
	__u32 difference = address_difference(packet, names);
	__be16 from[2] = { packet->source_port, packet->destination_port };
	__be16 to[2] = { names->source_port, names->destination_port };

	if (packet->part != FRAGMENT_LATER) {
		/* A UDP checksum of zero means none (RFC 768), and none may come out as zero. */
		__u64 flags = packet->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
		__u32 check = checksum_offset(packet);

		/*
		 * Datagrams that the kernel has still to cut have a partial checksum, also where the device completes
		 * none: the helpers would take that for a whole one.
		 */
		bool partial = packet->protocol == IPPROTO_UDP && skb->gso_size;

		if (partial) {
			__u16 sum;

			if (bpf_skb_load_bytes(skb, check, &sum, sizeof(sum)))
				return false;
			sum = ~csum_apply(~sum, difference);
			if (bpf_skb_store_bytes(skb, check, &sum, sizeof(sum), 0))
				return false;
		} else if (bpf_l4_csum_replace(skb, check, 0, difference, flags | BPF_F_PSEUDO_HDR)) {
			return false;
		}
		if (from[0] != to[0] || from[1] != to[1]) {
			__u32 old = *(__u32 *)from, new = *(__u32 *)to;

			if (!partial && bpf_l4_csum_replace(skb, check, old, new, flags | 4))
				return false;
			if (bpf_skb_store_bytes(skb, packet->transport, to, sizeof(to), 0))
				return false;
		}
	}
	return store_addresses(skb, packet, names, difference, BPF_F_RECOMPUTE_CSUM);
}

/* An ICMP error's quotation, and what it and the error are to carry. */
struct quotation {
	struct packet inner;
	struct names inner_names;
	struct names outer_names;
};

/* Too much for the stack beside everything else. Programs on tc are not interrupted by one another. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quotation);
} quotations SEC(".maps");

static __always_inline struct quotation *get_quotation(void)
{
	__u32 zero = 0;
	struct quotation *quotation = bpf_map_lookup_elem(&quotations, &zero);

	if (quotation)
		__builtin_memset(quotation, 0, sizeof(*quotation));
	return quotation;
}

/*
 * Gives the packet that an ICMP error quotes other names, and the error itself other addresses. The ICMP checksum
 * covers the quotation; an IPv4 header and its own checksum cancel out in it.
 */
__noinline bool rename_quotation(struct __sk_buff *skb, const struct packet *outer,
					const struct quotation *quotation)
{
	const struct names *inner_names, *outer_names;
	__u32 icmp_check, inner_difference, outer_difference, check;
	const struct packet *inner;
	__be16 from[2], to[2];
	__u32 old_ports, new_ports;
	__be16 checksum = 0;

	if (!outer || !quotation)
		return false;
	inner = &quotation->inner;
	inner_names = &quotation->inner_names;
	outer_names = &quotation->outer_names;
	icmp_check = outer->transport + ICMP_CHECKSUM;
	inner_difference = address_difference(inner, inner_names);
	outer_difference = address_difference(outer, outer_names);
	from[0] = inner->source_port;
	from[1] = inner->destination_port;
	to[0] = inner_names->source_port;
	to[1] = inner_names->destination_port;
	old_ports = *(__u32 *)from;
	new_ports = *(__u32 *)to;

	/* The quotation need not reach as far as TCP's checksum (RFC 792 asks for 8 bytes). */
	check = checksum_offset(inner);
	if (!bpf_skb_load_bytes(skb, check, &checksum, sizeof(checksum)) &&
	    (checksum || inner->protocol == IPPROTO_TCP)) {
		__u32 port_difference = csum_fold64(csum_word(old_ports, new_ports));
		__be16 changed = csum_apply(csum_apply(checksum, inner_difference), port_difference);

		if (!changed && inner->protocol == IPPROTO_UDP)
			changed = 0xffff;
		if (bpf_l4_csum_replace(skb, icmp_check, checksum, changed, 2))
			return false;
		if (bpf_skb_store_bytes(skb, check, &changed, sizeof(changed), 0))
			return false;
	}
	if (old_ports != new_ports) {
		if (bpf_l4_csum_replace(skb, icmp_check, old_ports, new_ports, 4))
			return false;
		if (bpf_skb_store_bytes(skb, inner->transport, to, sizeof(to), 0))
			return false;
	}
	if (inner->family == 6 && bpf_l4_csum_replace(skb, icmp_check, 0, inner_difference, 0))
		return false;
	if (!store_addresses(skb, inner, inner_names, inner_difference, 0))
		return false;
	/* Only ICMPv6 has a pseudo-header (RFC 4443 section 2.3). */
	if (outer->family == 6 && bpf_l4_csum_replace(skb, icmp_check, 0, outer_difference, BPF_F_PSEUDO_HDR))
		return false;
	return store_addresses(skb, outer, outer_names, outer_difference, BPF_F_RECOMPUTE_CSUM);
}

#endif
