/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Somebody else opens a connection under the names of a flow that has moved: the address that its peer left has a new
 * owner. The stack has a socket of these names and would answer the SYN with an acknowledgement (RFC 9293 section
 * 3.10.7.4, RFC 5961 section 4), which goes to the peer; the new owner, if it heard that, would reset the socket.
 */
#ifndef WHIMBREL_CLAIM_H
#define WHIMBREL_CLAIM_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "answer.h"
#include "parse.h"
#include "rewrite.h"
#include "verdict.h"

#define FLAG_RST 0x00040000U

/* Once for each flow and kind, until the daemon says anew what is known of it. `said`: of enum conflict. */
static __always_inline void report_conflict(struct flow_entry *flow, const struct flow_tuple *own, __u8 said,
					    __u32 kind)
{
	struct event *event;

	if (flow->conflict & said)
		return;
	event = bpf_ringbuf_reserve(&arrivals, sizeof(*event), 0);
	if (!event)
		return;
	flow->conflict |= said;
	__builtin_memset(event, 0, sizeof(*event));
	event->tuple = *own;
	event->kind = kind;
	bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
}

static __always_inline void report_claim(struct flow_entry *flow, const struct flow_tuple *own)
{
	report_conflict(flow, own, CONFLICT_REPORTED, EVENT_CLAIMED);
}

/* Turns a SYN round into the reset that says that nobody listens (RFC 9293 section 3.5.2), and sends it back. */
__noinline int refuse(struct __sk_buff *skb, const struct packet *packet)
{
	__be16 ethernet[6], turned[6];
	__be32 from[TCP_WORDS], to[TCP_WORDS];
	__u32 word, length;

	if (!packet || packet->part != FRAGMENT_WHOLE || bpf_skb_load_bytes(skb, packet->transport, from, sizeof(from)))
		return drop(COUNTER_CLAIMED);
	word = bpf_ntohl(from[3]);
	length = (word >> 28) * 4;
	if (length < TCP_OPTIONS || packet->end < packet->transport + length)
		return drop(COUNTER_CLAIMED);
	to[0] = from[0] << 16 | from[0] >> 16;
	to[1] = 0;
	to[2] = bpf_htonl(bpf_ntohl(from[1]) + 1 + packet->end - packet->transport - length);
	to[3] = bpf_htonl((word & 0xf0000000) | FLAG_ACK | FLAG_RST);
	for (int i = 0; i < TCP_WORDS; i++)
		if (!replace_word(skb, packet, i * 4, from[i], to[i]))
			return drop(COUNTER_CLAIMED);
	if (!turn_options(skb, packet, length - TCP_OPTIONS) || !turn_addresses(skb, packet))
		return drop(COUNTER_CLAIMED);
	if (packet->network) {
		if (bpf_skb_load_bytes(skb, 0, ethernet, sizeof(ethernet)))
			return drop(COUNTER_CLAIMED);
		for (int i = 0; i < 3; i++) {
			turned[i] = ethernet[i + 3];
			turned[i + 3] = ethernet[i];
		}
		if (bpf_skb_store_bytes(skb, 0, turned, sizeof(turned), 0))
			return drop(COUNTER_CLAIMED);
	}
	count(COUNTER_CLAIMED);
	skb->tc_index = TRANSLATED;
	return bpf_redirect(skb->ifindex, 0);
}

#endif
