/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Internet checksums (RFC 1071, RFC 1624).
 *
 * What the kernel's helpers need to be told, for each change of a packet in flight:
 *
 *   IPv4 addresses   the header's checksum follows; and at the transport checksum BPF_F_PSEUDO_HDR. The header then
 *                    sums to what it did before, so skb->csum (CHECKSUM_COMPLETE) only has to follow the transport
 *                    checksum, which BPF_F_PSEUDO_HDR does.
 *   IPv6 addresses   BPF_F_PSEUDO_HDR likewise, and since no header checksum makes up for the addresses, they are
 *                    stored with BPF_F_RECOMPUTE_CSUM.
 *   ports            no BPF_F_PSEUDO_HDR: a partial checksum (CHECKSUM_PARTIAL, as GSO packets have) does not cover
 *                    them yet, and in skb->csum they and the checksum cancel out.
 */
#ifndef WHIMBREL_CSUM_H
#define WHIMBREL_CSUM_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"

/* A sum of 32-bit words, as the helpers take it. */
static __always_inline __u32 csum_fold64(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum;
}

/* What is added to a sum when one word takes the place of another. */
static __always_inline __u64 csum_word(__be32 from, __be32 to)
{
	return (__u64)(__u32)~from + to;
}

static __always_inline __u16 csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* The checksum that stands for `checksum` once the words it covers have changed by `difference`. */
static __always_inline __u16 csum_apply(__u16 checksum, __u32 difference)
{
	__u32 sum = (__u16)~checksum;

	sum += (difference & 0xffff) + (difference >> 16);
	return csum_fold(sum);
}

#endif
