// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Keepalive and zero-window probes that get no answer. An object of its own, since it hangs on a function of the kernel
 * and not on a tracepoint: where that cannot be done the rest is as good.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "lib/socket.h"
#include "lib/stall.h"
#include "maps.h"

/* Called for each probe, before it is counted. */
SEC("fentry/tcp_write_wakeup")
int BPF_PROG(follow_probes, struct sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	(void)ctx;
	if (tcp && stalled(tcp->inet_conn.icsk_probes_out, 1))
		report_stalled(tcp, tcp->inet_conn.icsk_probes_out);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
