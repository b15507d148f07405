/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows that go on after a lapse, a time in which what they sent got nowhere. The peer echoes the timestamp of what it had
 * last, so the kernel measures the whole lapse as one round trip (net/ipv4/tcp_input.c, tcp_ack_update_rtt: what
 * was sent again has no better measure). For a while the retransmission timer is then a multiple of the lapse, and
 * whatever is lost just then, or was and is taken for found (tcp_try_undo_loss), waits for it: half a minute after half a minute.
 * A segment without timestamps is as good as any (tcp_fast_parse_options), and measures nothing.
 */
#ifndef WHIMBREL_LAPSE_H
#define WHIMBREL_LAPSE_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "parse.h"
#include "rewrite.h"
#include "timestamps.h"
#include "verdict.h"

/* The word of a TCP header that begins with its length in words. */
#define TCP_LENGTH 12

/* Takes the timestamps out of a segment for `own` that echoes what was sent before a lapse. False: drop it. */
static __noinline bool forget_lapse(struct __sk_buff *skb, const struct packet *packet, const struct flow_tuple *own)
{
	__be32 found[3], nops[3] = { ALL_NOPS, ALL_NOPS, ALL_NOPS };
	struct flow_entry *flow;
	__s64 difference;
	__u8 length;

	if (!packet || !own || packet->protocol != IPPROTO_TCP || packet->part == FRAGMENT_LATER)
		return true;
	flow = find_flow(own);
	if (!flow || !flow->lapsed)
		return true;
	if (bpf_skb_load_bytes(skb, packet->transport + TCP_LENGTH, &length, sizeof(length)) ||
	    (length >> 4) * 4 < TCP_OPTIONS + (int)sizeof(found) ||
	    bpf_skb_load_bytes(skb, packet->transport + TCP_OPTIONS, found, sizeof(found)) ||
	    found[0] != bpf_htonl(TIMESTAMPS))
		return true;
	if ((__s32)(bpf_ntohl(found[2]) - flow->echoes_from) >= 0) {
		/* The peer has had something new. */
		flow->lapsed = 0;
		return true;
	}
	difference = bpf_csum_diff(found, sizeof(found), nops, sizeof(nops), 0);
	if (difference < 0 || bpf_l4_csum_replace(skb, checksum_offset(packet), 0, difference, 0) ||
	    bpf_skb_store_bytes(skb, packet->transport + TCP_OPTIONS, nops, sizeof(nops), 0)) {
		count(COUNTER_DROPPED_RESTORE);
		return false;
	}
	count(COUNTER_STALE_ECHO);
	return true;
}

#endif
