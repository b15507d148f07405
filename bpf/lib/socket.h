/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The little of the kernel's socket structs that is read. Only names matter: the loader finds the offsets in the
 * running kernel's BTF (preserve_access_index).
 */
#ifndef WHIMBREL_SOCKET_H
#define WHIMBREL_SOCKET_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../abi.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct net {
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	int skc_bound_dev_if;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct socket {
	int type;
};

struct inode {
	unsigned long i_ino;
};

struct socket_alloc {
	struct socket socket;
	struct inode vfs_inode;
};

typedef struct {
	__u32 val;
} kuid_t;

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	unsigned long sk_pacing_rate;
	__u32 sk_pacing_status;
	unsigned short sk_protocol;
	kuid_t sk_uid;
};

struct ipv6_pinfo;

struct inet_sock {
	struct sock sk;
	struct ipv6_pinfo *pinet6;
	unsigned long inet_flags; /* from 6.6 on */
	__be16 inet_sport;
};

/* Before that it was a bit field, for IPv6 until 6.7. */
struct inet_sock___bits {
	__u8 recverr : 1;
};

struct ipv6_pinfo___bits {
	__u16 recverr : 1;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	__u32 icsk_pmtu_cookie;
	__u32 icsk_user_timeout;
	__u8 icsk_ca_state : 5;
	__u8 icsk_retransmits;
	__u8 icsk_backoff;
	__u8 icsk_probes_out;
	struct {
		__u32 lrcvtime;
	} icsk_ack;
	__u64 icsk_ca_priv[1];
};

struct rb_node;

struct rb_root {
	struct rb_node *rb_node;
};

struct tcp_options_received {
	__u16 snd_wscale : 4;
};

struct tcp_rack {
	__u64 mstamp;
	__u32 rtt_us;
};

struct minmax_sample {
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	struct tcp_options_received rx_opt;
	struct tcp_rack rack;
	struct minmax rtt_min;
	__u64 tcp_mstamp;
	struct rb_root out_of_order_queue;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 snd_up;
	__u32 rcv_nxt;
	__u32 snd_wnd;
	__u32 write_seq;
	__u32 mss_cache;
	__u32 lost_out;
	__u32 packets_out;
	__u32 sacked_out;
	__u32 retrans_out;
	__u32 total_retrans;
	__u32 snd_cwnd;
	__u32 snd_cwnd_clamp;
	__u32 snd_ssthresh;
	__u32 prior_cwnd;
	__u32 delivered;
	__u32 lost;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u32 tsoffset;
	__u32 segs_in;
	__u32 srtt_us;
	__u32 lsndtime;
	__u32 rcv_tstamp;
	__u64 bytes_acked;
	__u64 bytes_received;
};

/* From 6.7 on. */
struct tcp_sock___microseconds {
	__u8 tcp_usec_ts : 1;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
	unsigned int uid;
};

#pragma clang attribute pop

/* The bits of inet_flags have no named type that could be looked up (include/net/inet_sock.h). */
#define FLAG_RECVERR (1UL << 9)
#define FLAG_RECVERR6 (1UL << 26)

/* include/net/tcp_states.h */
enum {
	STATE_ESTABLISHED = 1,
	STATE_SYN_SENT = 2,
	STATE_SYN_RECV = 3,
	STATE_FIN_WAIT1 = 4,
	STATE_FIN_WAIT2 = 5,
	STATE_TIME_WAIT = 6,
	STATE_CLOSE = 7,
	STATE_LAST_ACK = 9,
	STATE_LISTEN = 10,
	STATE_CLOSING = 11,
	STATE_NEW_SYN_RECV = 12,
};

/* include/net/tcp.h: TCP_INFINITE_SSTHRESH, and enum tcp_ca_state */
#define NO_THRESHOLD 0x7fffffff
#define CONGESTION_REDUCED 2
#define CONGESTION_RECOVERY 3
#define CONGESTION_LOSS 4

#define FAMILY_INET 2
#define FAMILY_INET6 10

static __always_inline void read_addresses(const struct sock_common *common, struct flow_tuple *tuple)
{
	if (common->skc_family == FAMILY_INET6) {
		for (int i = 0; i < 4; i++) {
			tuple->local.words[i] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
			tuple->remote.words[i] = common->skc_v6_daddr.in6_u.u6_addr32[i];
		}
	} else {
		tuple->local.words[2] = bpf_htonl(0xffff);
		tuple->local.words[3] = common->skc_rcv_saddr;
		tuple->remote.words[2] = bpf_htonl(0xffff);
		tuple->remote.words[3] = common->skc_daddr;
	}
}

static __always_inline void read_tuple(const struct tcp_sock *tcp, struct flow_tuple *tuple)
{
	const struct inet_sock *inet = &tcp->inet_conn.icsk_inet;

	read_addresses(&inet->sk.__sk_common, tuple);
	tuple->local_port = inet->inet_sport;
	tuple->remote_port = inet->sk.__sk_common.skc_dport;
	tuple->transport = IPPROTO_TCP;
}

/*
 * IP_RECVERR or IPV6_RECVERR: the program is told of every ICMP error. Which one counts depends on the packets; a
 * socket that has either is left in peace.
 */
static __always_inline bool reports_errors(const struct inet_sock *inet)
{
	const struct inet_sock___bits *before = (const void *)inet;
	const struct ipv6_pinfo___bits *v6;

	if (bpf_core_field_exists(inet->inet_flags)) {
		if (inet->inet_flags & (FLAG_RECVERR | FLAG_RECVERR6))
			return true;
	} else if (bpf_core_field_exists(before->recverr) && BPF_CORE_READ_BITFIELD_PROBED(before, recverr)) {
		return true;
	}
	if (inet->sk.__sk_common.skc_family != FAMILY_INET6)
		return false;
	v6 = (const void *)inet->pinet6;
	return v6 && bpf_core_field_exists(v6->recverr) && BPF_CORE_READ_BITFIELD_PROBED(v6, recverr);
}

/* Whether a connection's times are microseconds and not milliseconds (`features tcp_usec_ts` of its route). */
static __always_inline bool counts_microseconds(const struct tcp_sock *tcp)
{
	const struct tcp_sock___microseconds *newer = (const void *)tcp;

	return bpf_core_field_exists(newer->tcp_usec_ts) && BPF_CORE_READ_BITFIELD_PROBED(newer, tcp_usec_ts);
}

static __always_inline int congestion_state(const struct tcp_sock *tcp)
{
	return BPF_CORE_READ_BITFIELD_PROBED(&tcp->inet_conn, icsk_ca_state);
}

static __always_inline bool is_loopback(const struct address *address)
{
	if (address->words[0] || address->words[1])
		return false;
	if (address->words[2] == bpf_htonl(0xffff))
		return (bpf_ntohl(address->words[3]) >> 24) == 127;
	return !address->words[2] && address->words[3] == bpf_htonl(1);
}

#endif
