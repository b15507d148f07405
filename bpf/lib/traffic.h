/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What goes between this host and a peer, whatever carries it (docs/decisions/0111-facts-from-traffic.md): when
 * something last came, and since when something that is usually answered is not. One timer for each pair of addresses
 * goes off at most once in the time in which an answer is due, and not at all where nothing is waited for.
 */
#ifndef WHIMBREL_TRAFFIC_H
#define WHIMBREL_TRAFFIC_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "parse.h"

#ifndef CLOCK_MONOTONIC
#define CLOCK_MONOTONIC 1
#endif

/* What took longer counts as this, in microseconds. */
#define USUAL_MOST 60000000U
/* The first bytes of what goes between daemons are below this one (docs/protocol.md); those of tunnels are not. */
#define FIRST_OF_TUNNEL 0x20

/* How long an answer may take, in ns. */
static __always_inline __u64 granted(const struct traffic *traffic)
{
	__u64 varies = 4 * (__u64)traffic->varies, least = traffic->usual / 4;
	__u64 usual = traffic->usual + (varies > least ? varies : least);

	return (usual > traffic->answer ? usual : traffic->answer) * 1000;
}

/* Has the timer go off in so many ns, unless it is set. */
static __always_inline void set_timer(struct traffic *traffic, __u64 after)
{
	if (__sync_lock_test_and_set(&traffic->armed, 1))
		return;
	if (bpf_timer_start(&traffic->timer, after, 0))
		traffic->armed = 0;
}

static int on_overdue(__attribute__((unused)) void *map, const struct locator_pair *pair,
		      struct traffic *traffic)
{
	__u64 asked, now = bpf_ktime_get_ns(), grant = granted(traffic);
	struct event *event;

	/* Before it is looked whether anything is waited for: who begins to wait now sets the timer again. */
	__sync_lock_test_and_set(&traffic->armed, 0);
	asked = traffic->asked;
	if (!asked || traffic->told)
		return 0;
	if (now < asked + grant) {
		set_timer(traffic, asked + grant - now);
		return 0;
	}
	event = bpf_ringbuf_reserve(&arrivals, sizeof(*event), 0);
	/* What leaves next has it tried again. */
	if (!event)
		return 0;
	__builtin_memset(event, 0, sizeof(*event));
	event->tuple.local = pair->local;
	event->tuple.remote = pair->peer;
	event->tuple.transport = IPPROTO_UDP;
	event->kind = EVENT_OVERDUE;
	event->index = (now - asked) / 1000;
	traffic->told = 1;
	bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
	return 0;
}

/* What daemons say to each other. `port`: that of this host. */
static __always_inline bool is_of_daemons(struct __sk_buff *skb, const struct packet *packet, __be16 port,
					  const struct traffic *traffic)
{
	__u8 first;

	return packet->protocol == IPPROTO_UDP && bpf_ntohs(port) == traffic->port &&
	       packet->part != FRAGMENT_LATER &&
	       !bpf_skb_load_bytes(skb, packet->transport + sizeof(struct udphdr), &first, 1) &&
	       first < FIRST_OF_TUNNEL;
}

#define TCP_OFFSET 12
#define TCP_FIN 0x01

/* Is it of a kind that may be answered? */
static __always_inline bool asks(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 header[2];

	if (packet->part == FRAGMENT_LATER)
		return false;
	if (packet->protocol != IPPROTO_TCP)
		return packet->protocol == IPPROTO_UDP;
	if (bpf_skb_load_bytes(skb, packet->transport + TCP_OFFSET, header, sizeof(header)))
		return false;
	return !packet->end || packet->end > packet->transport + (header[0] >> 4) * 4 ||
	       (header[1] & (TCP_FIN | TCP_SYN) && !(header[1] & TCP_RST));
}

/*
 * Something leaves, under the names that it has now. A function that reads the packet by itself: what calls it has no
 * room on the stack for more (see to_wire).
 */
__noinline int note_leaving(struct __sk_buff *skb, __u32 network)
{
	struct locator_pair pair;
	struct packet read = {};
	const struct packet *packet = &read;
	struct traffic *between;

	if (!parse(skb, network, skb->protocol, &read))
		return 0;
	pair.peer = read.destination;
	pair.local = read.source;
	between = bpf_map_lookup_elem(&traffic, &pair);
	/* Something is waited for, and it is seen to that it is told. */
	if (!between || (between->asked && (between->armed || between->told)))
		return 0;
	if (!asks(skb, packet) || is_of_daemons(skb, packet, read.source_port, between))
		return 0;
	if (!between->asked) {
		/* What was told of the last time may have been so a moment after it was answered. */
		between->told = 0;
		between->asked = bpf_ktime_get_ns();
	}
	if (between->answers < ANSWERS_ENOUGH)
		return 0;
	if (!between->ready) {
		/* Another processor may be about to. */
		if (bpf_timer_init(&between->timer, &traffic, CLOCK_MONOTONIC) ||
		    bpf_timer_set_callback(&between->timer, on_overdue))
			return 0;
		between->ready = 1;
	}
	set_timer(between, granted(between));
	return 0;
}

/* An answer came after so many microseconds. */
static __always_inline void learn(struct traffic *traffic, __u32 took)
{
	__s32 differs = took - traffic->usual;

	if (!traffic->answers) {
		traffic->usual = took;
		traffic->varies = took / 2;
	} else if (traffic->told) {
		/* In vain, it seems: that counts in full. */
		if (differs > 0)
			traffic->usual = took;
	} else {
		traffic->varies += ((__s32)((differs < 0 ? -differs : differs) - traffic->varies)) >> 2;
		traffic->usual += differs >> 3;
	}
	traffic->told = 0;
	if (traffic->answers < ANSWERS_ENOUGH)
		traffic->answers += 1;
}

/* Something comes, under the names that it has on the wire. */
__noinline int note_coming(struct __sk_buff *skb, const struct packet *packet)
{
	struct locator_pair pair;
	struct traffic *between;
	__u64 asked, now, took;

	if (!packet)
		return 0;
	pair.peer = packet->source;
	pair.local = packet->destination;
	between = bpf_map_lookup_elem(&traffic, &pair);
	if (!between || is_of_daemons(skb, packet, packet->destination_port, between))
		return 0;
	if (!between->asked) {
		/* Nothing is measured: it is written once in a tick of that clock. */
		now = bpf_ktime_get_coarse_ns();
		if (between->heard != now)
			between->heard = now;
		return 0;
	}
	/* What another processor hears at this moment is no answer to the same. The time is looked at later, to be later. */
	asked = __sync_lock_test_and_set(&between->asked, 0);
	now = bpf_ktime_get_ns();
	between->heard = now;
	if (!asked)
		return 0;
	took = (now - asked) / 1000;
	learn(between, took < USUAL_MOST ? took : USUAL_MOST);
	return 0;
}

#endif
