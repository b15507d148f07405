/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Addresses of either family in one shape. */
#ifndef WHIMBREL_ADDRESS_H
#define WHIMBREL_ADDRESS_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"

static __always_inline void map_ipv4(struct address *address, __be32 ipv4)
{
	address->words[0] = 0;
	address->words[1] = 0;
	address->words[2] = bpf_htonl(0xffff);
	address->words[3] = ipv4;
}

static __always_inline bool is_ipv4(const struct address *address)
{
	return !address->words[0] && !address->words[1] && address->words[2] == bpf_htonl(0xffff);
}

static __always_inline bool same_address(const struct address *a, const struct address *b)
{
	return a->words[0] == b->words[0] && a->words[1] == b->words[1] && a->words[2] == b->words[2] &&
	       a->words[3] == b->words[3];
}

#endif
