/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Keeping a socket from giving up while its peer is away (docs/decisions/0008-parked-sockets.md). It costs no timer and
 * no process: two options of the socket are changed, and put back when the peer is there again.
 */
#ifndef WHIMBREL_PARK_H
#define WHIMBREL_PARK_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"
#include "socket.h"

#ifndef SOL_SOCKET
#define SOL_SOCKET 1
#endif
#ifndef SO_KEEPALIVE
#define SO_KEEPALIVE 9
#endif
#ifndef SOL_TCP
#define SOL_TCP 6
#endif
#ifndef TCP_USER_TIMEOUT
#define TCP_USER_TIMEOUT 18
#endif

/*
 * TCP_USER_TIMEOUT of parked sockets, in milliseconds: 20 days. The kernel compares it with what has gone by since the
 * first retransmission by the sign of a 32-bit difference, in milliseconds (net/ipv4/tcp_timer.c,
 * retransmits_timed_out, tcp_clamp_rto_to_user_timeout) or jiffies (tcp_probe_timer). 2^31 - 1 would be the most in
 * that, but a first retransmission that pacing has dated into the future would then count as one that is 24 days old.
 */
#define PARKED_TIMEOUT 1728000000
/* Where the kernel keeps these times in microseconds, it multiplies by 1000 first: half an hour. */
#define PARKED_TIMEOUT_MICROSECONDS 1800000

/* What a socket had before it was parked. */
struct parked_socket {
	__u32 timeout;	    /* TCP_USER_TIMEOUT, ms */
	__u32 acknowledged; /* snd_una when it was last seen parked */
	__u8 keepalive;	    /* 1: SO_KEEPALIVE was on, and was turned off */
	__u8 returning;	    /* 1: SO_KEEPALIVE is back, TCP_USER_TIMEOUT is not */
	__u8 zero[2];
};

/* The kernel drops it with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct parked_socket);
} parked_sockets SEC(".maps");

static __always_inline __u32 parked_timeout(const struct tcp_sock *tcp)
{
	return counts_microseconds(tcp) ? PARKED_TIMEOUT_MICROSECONDS : PARKED_TIMEOUT;
}

/* Closed by its program, and not gone yet. A socket that waits to be accepted has no file either. */
static __always_inline bool is_orphan(const struct tcp_sock *tcp)
{
	const struct sock *sk = &tcp->inet_conn.icsk_inet.sk;
	int state = sk->__sk_common.skc_state;

	return !sk->sk_socket && (state == STATE_FIN_WAIT1 || state == STATE_FIN_WAIT2 || state == STATE_CLOSING ||
				  state == STATE_LAST_ACK);
}

static __always_inline bool has_keepalive(struct tcp_sock *tcp)
{
	int on = 0;

	return !bpf_getsockopt(tcp, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) && on;
}

static __always_inline bool set_keepalive(struct tcp_sock *tcp, int on)
{
	return !bpf_setsockopt(tcp, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

static __always_inline bool set_timeout(struct tcp_sock *tcp, int timeout)
{
	return !bpf_setsockopt(tcp, SOL_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
}

/* A socket that is parked. Gives enum fitted. */
static __always_inline __u8 park(struct tcp_sock *tcp)
{
	__u32 timeout = tcp->inet_conn.icsk_user_timeout, longest = parked_timeout(tcp);
	struct parked_socket *noted = bpf_sk_storage_get(&parked_sockets, tcp, NULL, 0);
	bool orphan = is_orphan(tcp);

	if (noted) {
		noted->acknowledged = tcp->snd_una;
		/* What its program has set since then is its own affair. */
		if (!noted->returning)
			return 0;
	} else {
		/*
		 * Its end is acknowledged and it waits for the peer's, no longer than net.ipv4.tcp_fin_timeout. The
		 * timer of that is the one for keepalives, which SO_KEEPALIVE would stop.
		 */
		if (orphan && tcp->inet_conn.icsk_inet.sk.__sk_common.skc_state == STATE_FIN_WAIT2)
			return 0;
		noted = bpf_sk_storage_get(&parked_sockets, tcp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
		if (!noted)
			return 0;
		noted->acknowledged = tcp->snd_una;
		noted->timeout = timeout;
	}
	noted->returning = 0;
	if (timeout != longest) {
		noted->timeout = timeout;
		if (!set_timeout(tcp, longest)) {
			bpf_sk_storage_delete(&parked_sockets, tcp);
			return 0;
		}
	}
	if (!orphan && has_keepalive(tcp))
		noted->keepalive = set_keepalive(tcp, 0);
	return FITTED_CHANGED;
}

/*
 * A socket that is not parked, or no longer. Gives enum fitted.
 *
 * What it had before may end it at once while the kernel still reckons from before the absence: from the first
 * retransmission until something is acknowledged and the loss is made up for, and from the last packet received until
 * keepalive probes are answered. `at_once`: nobody will come again, so it is put back all the same.
 */
static __always_inline __u8 unpark(struct tcp_sock *tcp, bool at_once)
{
	struct parked_socket *noted = bpf_sk_storage_get(&parked_sockets, tcp, NULL, 0);
	const struct inet_connection_sock *connection = &tcp->inet_conn;
	bool orphan, acknowledged;
	__u8 fitted = 0;

	if (!noted)
		return 0;
	acknowledged = tcp->snd_una != noted->acknowledged &&
		       BPF_CORE_READ_BITFIELD_PROBED(connection, icsk_ca_state) != CONGESTION_LOSS;
	if (!at_once && !acknowledged && tcp->snd_una != tcp->write_seq)
		return FITTED_WAITING;
	orphan = is_orphan(tcp);
	if (noted->keepalive && !orphan && !has_keepalive(tcp) && set_keepalive(tcp, 1))
		fitted |= FITTED_CHANGED;
	noted->keepalive = 0;
	if (connection->icsk_user_timeout == parked_timeout(tcp) && connection->icsk_user_timeout != noted->timeout) {
		if (!at_once && noted->timeout && connection->icsk_probes_out && !orphan && has_keepalive(tcp)) {
			noted->returning = 1;
			return fitted | FITTED_WAITING;
		}
		if (set_timeout(tcp, noted->timeout))
			fitted |= FITTED_CHANGED;
	}
	bpf_sk_storage_delete(&parked_sockets, tcp);
	return fitted;
}

#endif
