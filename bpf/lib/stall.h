/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows whose sockets get no answer. Nothing of it runs while nothing is sent again. */
#ifndef WHIMBREL_STALL_H
#define WHIMBREL_STALL_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "../maps.h"
#include "socket.h"

/* Is it to be said of a socket that tried so often in a row? Then again when it has tried twice as often. */
static __always_inline bool stalled(__u8 attempts, __u8 first)
{
	return attempts >= first && !(attempts & (attempts - 1));
}

/* The programs see the sockets of every namespace of the machine. */
static __always_inline void report_stalled(struct tcp_sock *tcp, __u8 attempts)
{
	const struct settings *settings = get_settings();
	struct flow_tuple own = {};
	struct event *event;

	if (!settings ||
	    tcp->inet_conn.icsk_inet.sk.__sk_common.skc_net.net->net_cookie != settings->namespace_cookie)
		return;
	read_tuple(tcp, &own);
	if (!find_flow(&own))
		return;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count(COUNTER_FLOW_EVENT_LOST);
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->tuple = own;
	event->kind = EVENT_FLOW_STALLED;
	event->index = attempts;
	bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
}

#endif
