/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Internet checksums (RFC 1071, RFC 1624).
 *
 * What the kernel's helpers need to be told, for each change of a packet in flight:
 *
 *   IPv4 addresses   bpf_l3_csum_replace; and at the transport checksum BPF_F_PSEUDO_HDR. The header then sums to what
 *                    it did before, so skb->csum (CHECKSUM_COMPLETE) only has to follow the transport checksum, which
 *                    BPF_F_PSEUDO_HDR does.
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

	sum += difference & 0xffff;
	sum += difference >> 16;
	return csum_fold(sum);
}

#endif
