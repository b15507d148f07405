/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Recognising and consuming introduction segments (docs/protocol.md section 4). */
#ifndef WHIMBREL_INTRODUCTION_H
#define WHIMBREL_INTRODUCTION_H

#include <stddef.h>
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "parse.h"
#include "verdict.h"

/* Options that may stand before ours; the sender puts it first, a middlebox may put padding there. */
#define MAX_OPTIONS 10

struct introduction {
	__u32 index;
	__u32 sequence;
	__u32 acknowledgement;
	__u64 nonce;
};

static __always_inline __u32 read_u32(const __u8 *bytes)
{
	return (__u32)bytes[0] << 24 | (__u32)bytes[1] << 16 | (__u32)bytes[2] << 8 | bytes[3];
}

static __always_inline __u64 read_u64(const __u8 *bytes)
{
	return (__u64)read_u32(bytes) << 32 | read_u32(bytes + 4);
}

static __always_inline bool read_option(struct __sk_buff *skb, __u32 offset, struct introduction *introduction)
{
	__u8 option[INTRODUCTION_OPTION_LENGTH];

	if (bpf_skb_load_bytes(skb, offset, option, sizeof(option)))
		return false;
	if (option[1] != INTRODUCTION_OPTION_LENGTH || option[2] != INTRODUCTION_EXID >> 8 ||
	    option[3] != (INTRODUCTION_EXID & 0xff))
		return false;
	introduction->index = read_u32(option + 4);
	introduction->nonce = read_u64(option + 8);
	return true;
}

static __always_inline bool read_tcp_introduction(struct __sk_buff *skb, const struct packet *packet,
						  struct introduction *introduction)
{
	__u8 header[14];
	__u32 length, offset, end;

	if (bpf_skb_load_bytes(skb, packet->transport, header, sizeof(header)))
		return false;
	/* Nearly every segment ends here. A keepalive has ACK alone and no data. */
	length = (header[12] >> 4) * 4;
	if (length < sizeof(struct tcphdr) + INTRODUCTION_OPTION_LENGTH)
		return false;
	if ((header[13] & 0x17) != 0x10 || packet->end != packet->transport + length)
		return false;
	introduction->sequence = read_u32(header + 4);
	introduction->acknowledgement = read_u32(header + 8);
	offset = packet->transport + sizeof(struct tcphdr);
	end = packet->transport + length;
	for (int i = 0; i < MAX_OPTIONS; i++) {
		__u8 option[2];

		if (offset + INTRODUCTION_OPTION_LENGTH > end)
			return false;
		if (bpf_skb_load_bytes(skb, offset, option, sizeof(option)))
			return false;
		if (option[0] == 0)
			return false;
		if (option[0] == 1) {
			offset += 1;
			continue;
		}
		if (option[0] == INTRODUCTION_OPTION_KIND && read_option(skb, offset, introduction))
			return true;
		if (option[1] < 2)
			return false;
		offset += option[1];
	}
	return false;
}

static __always_inline bool read_udp_introduction(struct __sk_buff *skb, const struct packet *packet,
						  struct introduction *introduction)
{
	static const __u8 prefix[8] = { 0xff, 'W', 'B', 'i', 'n', 't', 'r', 'o' };
	__u8 data[INTRODUCTION_DATAGRAM_LENGTH];

	if (packet->end != packet->transport + sizeof(struct udphdr) + sizeof(data))
		return false;
	if (bpf_skb_load_bytes(skb, packet->transport + sizeof(struct udphdr), data, sizeof(data)))
		return false;
	for (int i = 0; i < 8; i++)
		if (data[i] != prefix[i])
			return false;
	introduction->index = read_u32(data + 8);
	introduction->nonce = read_u64(data + 12);
	return true;
}

/* The nonces of carrier probes have it set; their names are no flow's. */
#define PROBE_BIT (1ULL << 63)

/* A flow whose far end is not to learn where this host is, or a leased end's of which that is not known yet. */
static __always_inline bool is_hidden(const struct flow_tuple *own)
{
	const struct settings *settings = get_settings();
	const struct flow_entry *flow = find_flow(own);
	const struct lent *lent;

	if (flow)
		return flow->held & HELD_HIDDEN;
	if (!settings || settings->idle & IDLE_ENDPOINTS)
		return false;
	lent = find_lent(&own->local, own->local_port, own->transport);
	return lent && lent->delivery;
}

/*
 * True: the packet was an introduction for a session of ours, has been reported, and must go no further. One for
 * anybody else is passed on untouched, so that a forwarding host does not swallow its neighbours'. `on_wire`: the
 * packet may have the names that its flow has between two hosts.
 */
__noinline bool consume_introduction(struct __sk_buff *skb, const struct packet *packet, bool on_wire)
{
	struct introduction introduction = {};
	const struct flow_tuple *own = NULL;
	struct flow_tuple seen = {};
	struct event *event;
	struct share *share;
	const struct locator *locator;
	bool found;

	if (!packet || packet->part != FRAGMENT_WHOLE)
		return false;
	if (packet->protocol == IPPROTO_TCP)
		found = read_tcp_introduction(skb, packet, &introduction);
	else if (packet->protocol == IPPROTO_UDP)
		found = read_udp_introduction(skb, packet, &introduction);
	else
		return false;
	share = found ? bpf_map_lookup_elem(&introduction_indices, &introduction.index) : NULL;
	if (!share)
		return false;
	/* In a flow that another host passes on it comes under the names that the flow has between the two. */
	locator = on_wire && !(introduction.nonce & PROBE_BIT) ? find_locator(&packet->source, &packet->destination) : NULL;
	if (locator)
		own = find_own(locator->binding, packet->protocol, packet->destination_port, packet->source_port);
	if (!own) {
		seen.local = packet->destination;
		seen.remote = packet->source;
		seen.local_port = packet->destination_port;
		seen.remote_port = packet->source_port;
		seen.transport = packet->protocol;
		own = &seen;
	}
	/*
	 * Whoever is hidden is not to be found out by what he does not answer. A program would read a datagram: that
	 * gets no answer, as where nobody hears it.
	 */
	if (is_hidden(own))
		return packet->protocol == IPPROTO_UDP;
	/*
	 * P-142: an index is no secret, and whoever has seen one may send as many of these as its link bears. Each
	 * costs the daemon a look for a socket, so that an index brings no more than its peer does at its fastest.
	 */
	if (!take_share(share, arrivals_wait() ? SHARE_WHEN_BUSY : SHARE_MOST)) {
		count(COUNTER_INTRODUCTION_EXCESS);
		return true;
	}
	event = bpf_ringbuf_reserve(&arrivals, sizeof(*event), 0);
	if (!event) {
		count(COUNTER_INTRODUCTION_LOST);
		return true;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->tuple = *own;
	event->kind = EVENT_INTRODUCTION;
	event->nonce = introduction.nonce;
	event->index = introduction.index;
	event->sequence = introduction.sequence;
	event->acknowledgement = introduction.acknowledgement;
	event->interface = skb->ifindex;
	bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
	count(COUNTER_INTRODUCTION);
	return true;
}

#endif
