// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A congestion control for a round trip or some: of a sender which comes back to a network where it has been, and
 * has what it had there, or is where nothing is known of (docs/decisions/0109-windows-are-kept.md). Its phases are
 * those of careful resume (RFC 9959). It is put in the place of the socket's own, which it puts back itself; that
 * begins anew with the window and the threshold that it finds (tcp_init_congestion_control).
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "abi.h"
#include "lib/socket.h"

#ifndef SOL_TCP
#define SOL_TCP 6
#endif
#ifndef TCP_CONGESTION
#define TCP_CONGESTION 13
#endif

/* include/net/tcp.h: TCP_CA_NAME_MAX */
#define NAME_BYTES 16
/* include/net/sock.h, enum sk_pacing */
#define PACING_NONE 0
#define PACING_NEEDED 1
/* RFC 6928, in segments */
#define INITIAL_WINDOW 10
#define MICROSECONDS 1000000ULL
/*
 * Of the round trip, and of the window, in which this host may drop what it sends: the answer that a jump waits for
 * comes at the same time as the one that confirms the path, and no more than an allowance goes there before that is
 * known.
 */
#define EARLY_PART 4
/* And ten round trips, microseconds: before what was sent after the hand-off is answered */
#define ANSWERED_WITHIN 1000000ULL

/* What of struct tcp_congestion_ops is filled in (include/net/tcp.h). */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_control)(struct sock *sk);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*init)(struct sock *sk);
	char name[NAME_BYTES];
};

/* What it is registered as: names are the machine's, and each instance has one of its own. */
const volatile char ours[NAME_BYTES] SEC(".rodata.ours");
/* There in every kernel. */
const volatile char common[NAME_BYTES] SEC(".rodata.common") = "reno";

enum phase {
	PHASE_NORMAL = 0, /* its own congestion control has it */
	PHASE_RECONNAISSANCE = 1,
	PHASE_UNVALIDATED = 2,
	PHASE_VALIDATING = 3,
	PHASE_RETREAT = 4,
	PHASE_CALLED_OFF = 5, /* it has gone on to a network of which nothing is known */
};

struct resuming {
	struct resumption saved;
	__u64 turned;	 /* microseconds: when the phase began */
	__u64 settled;	 /* microseconds: what is lost of what was sent before that may have been dropped by ourselves */
	__u32 round_trip; /* microseconds, over which the jump is sent */
	__u32 phase;
	__u32 delivered; /* segments, when it jumped; before that, when it began */
	__u32 lost;	 /* segments, when it jumped; once some of that is answered, then */
	__u32 others;	 /* segments: so many at the most may yet turn out to be lost of what went before that */
	__u32 under_way; /* segments, then */
	__u32 arrived;	 /* segments, of which so many have arrived before any of what was sent later */
	__u32 answered;	 /* 1: some of what was sent later has arrived */
	__u32 window;	 /* segments: it jumped from */
	__u32 pacing;	 /* enum sk_pacing, before */
	char own[NAME_BYTES];
};

/* The kernel drops it with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct resuming);
} resuming SEC(".maps");

/* Whose senders come back, for one pass. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct flow_tuple);
	__type(value, struct resumption);
} resumptions SEC(".maps");

static __always_inline void copy(char *to, const volatile char *from)
{
	for (int i = 0; i < NAME_BYTES; i++)
		to[i] = from[i];
}

static __always_inline __u32 segments(const struct tcp_sock *tcp, __u32 bytes)
{
	__u32 size = tcp->mss_cache ? tcp->mss_cache : 536, count = bytes / size;

	return count > 2 ? count : 2;
}

static __always_inline __u32 delivered_since(const struct tcp_sock *tcp, const struct resuming *state)
{
	return tcp->delivered - state->delivered;
}

/* Whether something is lost that was sent in the jump: no more can be of what went before. */
static __always_inline bool has_lost(const struct tcp_sock *tcp, const struct resuming *state)
{
	return (__s32)(tcp->lost - state->lost - state->others) > 0;
}

static __always_inline __u32 in_flight(const struct tcp_sock *tcp)
{
	return tcp->packets_out - tcp->sacked_out - tcp->lost_out + tcp->retrans_out;
}

static __always_inline void set_window(struct tcp_sock *tcp, __u32 window)
{
	tcp->snd_cwnd = window < tcp->snd_cwnd_clamp ? window : tcp->snd_cwnd_clamp;
}

/* What a faster network took is too much for this one. */
static __always_inline void cut(struct tcp_sock *tcp, const struct resuming *state)
{
	__u32 most = segments(tcp, state->saved.most);

	if (tcp->snd_cwnd > most)
		set_window(tcp, most);
}

/* The threshold that is come back to. */
static __always_inline __u32 threshold(const struct tcp_sock *tcp, const struct resumption *saved)
{
	return saved->threshold == ~0U ? NO_THRESHOLD : segments(tcp, saved->threshold);
}

/* What is private to BBR (net/ipv4/tcp_bbr.c), which takes it over from tcp_sock.rtt_min when it begins. */
struct bbr {
	__u32 min_rtt_us;
} __attribute__((preserve_access_index));

static __always_inline bool is_bbr(const char *name)
{
	return name[0] == 'b' && name[1] == 'b' && name[2] == 'r' && !name[3];
}

/*
 * Normal: the socket has its own again. The kernel ends a reduction that is under way with the threshold for a window
 * (tcp_end_cwnd_reduction), which it leaves to who has cong_control as long as that is there: nothing of what was to be
 * jumped to may come of that.
 */
static __always_inline void finish(struct sock *sk, struct resuming *state)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	int reducing = congestion_state(tcp);
	char own[NAME_BYTES];

	if ((reducing == CONGESTION_REDUCED || reducing == CONGESTION_RECOVERY) && tcp->snd_ssthresh > tcp->snd_cwnd)
		tcp->snd_ssthresh = tcp->snd_cwnd;
	state->phase = PHASE_NORMAL;
	if (state->pacing == PACING_NONE)
		sk->sk_pacing_status = PACING_NONE;
	__builtin_memcpy(own, state->own, sizeof(own));
	/* Else it holds the window down to what a shorter path held, for ten seconds. */
	if (!bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, own, sizeof(own)) && state->round_trip && is_bbr(own) &&
	    bpf_core_field_exists(((struct bbr *)0)->min_rtt_us))
		((struct bbr *)tcp->inet_conn.icsk_ca_priv)->min_rtt_us = state->round_trip;
}

/* Where the socket is paced: by what it may send here, and not by what it could send before. */
static __always_inline void pace(struct sock *sk, const struct tcp_sock *tcp, const struct resuming *state)
{
	if (sk->sk_pacing_status != PACING_NONE && state->round_trip)
		sk->sk_pacing_rate = 2ULL * tcp->snd_cwnd * tcp->mss_cache * MICROSECONDS / state->round_trip;
}

/*
 * RFC 9959, Safe Retreat: something of what the jump has sent is lost. No more is under way than half of what has
 * arrived since, nor is less than what anybody may begin with.
 */
static __always_inline void retreat(struct sock *sk, struct tcp_sock *tcp, struct resuming *state)
{
	__u32 half = delivered_since(tcp, state) / 2;

	if (half < INITIAL_WINDOW)
		half = INITIAL_WINDOW;
	tcp->snd_ssthresh = half;
	if (tcp->snd_cwnd > half)
		set_window(tcp, half);
	finish(sk, state);
}

/*
 * RFC 9959, Reconnaissance: what has been sent since has been answered, and the round trip may be that of the network
 * which is remembered.
 */
static __always_inline void look_around(struct sock *sk, struct tcp_sock *tcp, struct resuming *state)
{
	const struct resumption *saved = &state->saved;
	__u64 elapsed = tcp->tcp_mstamp - saved->since, rate;
	bool fresh = tcp->rack.mstamp >= saved->since;
	__u32 round_trip, window;

	if (!delivered_since(tcp, state))
		return;
	/* Answers to what went the former way say nothing. What is sent again leaves no time of its own sometimes. */
	if (!fresh && elapsed < saved->least - saved->least / 8)
		return;
	round_trip = fresh && tcp->rack.rtt_us < elapsed ? tcp->rack.rtt_us : elapsed;
	/* What comes of it so late was lost on the way, or the network is not what it was. */
	if (round_trip < saved->least / 2 || elapsed > ANSWERED_WITHIN + 10ULL * saved->smoothed ||
	    round_trip / 10 > saved->smoothed) {
		finish(sk, state);
		return;
	}
	window = segments(tcp, saved->window);
	state->round_trip = round_trip;
	if (window <= tcp->snd_cwnd) {
		/* What was lost meanwhile was the former network's; it halves the window all the same. */
		if (saved->unknown && congestion_state(tcp) >= CONGESTION_REDUCED)
			set_window(tcp, window);
		if (!saved->unknown)
			tcp->snd_ssthresh = threshold(tcp, saved);
		pace(sk, tcp, state);
		finish(sk, state);
		return;
	}
	state->window = tcp->snd_cwnd;
	state->delivered = tcp->delivered;
	state->lost = tcp->lost;
	/* Each that is out, though the kernel may take back that it is lost and say so anew; each that was sent again. */
	state->others = tcp->packets_out - tcp->sacked_out + tcp->retrans_out + window / EARLY_PART;
	state->under_way = in_flight(tcp) + window / EARLY_PART;
	state->arrived = 0;
	state->answered = 0;
	state->turned = tcp->tcp_mstamp;
	state->settled = tcp->tcp_mstamp + round_trip / EARLY_PART;
	state->phase = PHASE_UNVALIDATED;
	tcp->snd_ssthresh = threshold(tcp, saved);
	set_window(tcp, window);
	/* Over a round trip, not at once. */
	rate = (__u64)window * tcp->mss_cache * MICROSECONDS / (round_trip ? round_trip : 1);
	sk->sk_pacing_rate = rate;
	if (state->pacing == PACING_NONE)
		sk->sk_pacing_status = PACING_NEEDED;
}

/*
 * What went before the jump arrives before it does, or is taken for lost when the first of it arrives (RFC 8985): after
 * that it cannot be blamed for what is lost. The jump's first part counts as before it.
 */
static __always_inline void note_answer(const struct tcp_sock *tcp, struct resuming *state)
{
	__u32 resolved = state->arrived + tcp->lost - state->lost;

	if (tcp->rack.mstamp <= state->settled) {
		state->arrived = delivered_since(tcp, state);
		return;
	}
	state->others = resolved < state->under_way ? state->under_way - resolved : 0;
	state->lost = tcp->lost;
	state->answered = 1;
}

/* RFC 9959, Unvalidated and Validating: what the jump has sent arrives, or does not. */
static __always_inline void validate(struct sock *sk, struct tcp_sock *tcp, struct resuming *state)
{
	__u32 most = segments(tcp, state->saved.most), pipe = delivered_since(tcp, state), grown;

	if (has_lost(tcp, state)) {
		retreat(sk, tcp, state);
		return;
	}
	if (!state->answered)
		note_answer(tcp, state);
	if (tcp->rack.mstamp <= state->turned)
		return;
	if (state->phase == PHASE_UNVALIDATED) {
		if (tcp->tcp_mstamp - state->turned < state->round_trip)
			return;
		state->phase = PHASE_VALIDATING;
		state->turned = tcp->tcp_mstamp;
		/* What has not been used is not had. */
		pipe += in_flight(tcp);
		if (pipe < tcp->snd_cwnd)
			set_window(tcp, pipe > state->window ? pipe : state->window);
		return;
	}
	/* The last that was sent before any of it was answered has arrived. Slow start goes on to what there was. */
	grown = tcp->snd_cwnd + pipe;
	if (grown > most)
		grown = most;
	if (grown > tcp->snd_cwnd)
		set_window(tcp, grown);
	finish(sk, state);
}

SEC("struct_ops/resume_control")
int BPF_PROG(resume_control, struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct resuming *state = bpf_sk_storage_get(&resuming, sk, NULL, 0);
	char name[NAME_BYTES];

	(void)ctx;
	if (!state || state->phase == PHASE_NORMAL) {
		/* Its program has chosen this one by itself. */
		copy(name, common);
		bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
		return 0;
	}
	if (state->phase == PHASE_RECONNAISSANCE) {
		/* It was here already when it moved on, so that it was not begun anew. */
		cut(tcp, state);
		look_around(sk, tcp, state);
	} else if (state->phase == PHASE_CALLED_OFF)
		finish(sk, state);
	else if (state->phase == PHASE_RETREAT)
		retreat(sk, tcp, state);
	else
		validate(sk, tcp, state);
	return 0;
}

static __always_inline bool jumped(const struct resuming *state)
{
	return state->phase >= PHASE_UNVALIDATED && state->phase <= PHASE_RETREAT;
}

/* The kernel takes some for lost. Before the jump that is what went the former way. */
SEC("struct_ops/resume_ssthresh")
__u32 BPF_PROG(resume_ssthresh, struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct resuming *state = bpf_sk_storage_get(&resuming, sk, NULL, 0);
	__u32 half = tcp->snd_cwnd / 2;

	(void)ctx;
	if (state && state->phase == PHASE_RECONNAISSANCE)
		return segments(tcp, state->saved.window);
	if (state && jumped(state) && !has_lost(tcp, state))
		return threshold(tcp, &state->saved);
	if (state && jumped(state)) {
		state->phase = PHASE_RETREAT;
		half = delivered_since(tcp, state) / 2;
	}
	return half > 2 ? half : 2;
}

SEC("struct_ops/resume_undo")
__u32 BPF_PROG(resume_undo, struct sock *sk)
{
	const struct tcp_sock *tcp = (const struct tcp_sock *)sk;

	(void)ctx;
	return tcp->snd_cwnd;
}

SEC("struct_ops/resume_init")
int BPF_PROG(resume_init, struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct resuming *state = bpf_sk_storage_get(&resuming, sk, NULL, 0);

	(void)ctx;
	if (state && state->phase == PHASE_RECONNAISSANCE)
		cut(tcp, state);
	return 0;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops resume = {
	.ssthresh = (void *)resume_ssthresh,
	.cong_control = (void *)resume_control,
	.undo_cwnd = (void *)resume_undo,
	.init = (void *)resume_init,
	.name = "whimbrel",
};

static __always_inline bool is_ours(const char *name)
{
	for (int i = 0; i < NAME_BYTES; i++) {
		if (name[i] != ours[i])
			return false;
		if (!name[i])
			break;
	}
	return true;
}

/* Shows one byte for each socket that it has put this congestion control on. */
SEC("iter/tcp")
int resume_sockets(struct bpf_iter__tcp *context)
{
	struct sock_common *common = context->sk_common;
	const struct resumption *saved;
	char name[NAME_BYTES] = {};
	struct flow_tuple own = {};
	struct resuming *state;
	struct tcp_sock *tcp;
	__u8 shown = 1;

	tcp = common ? bpf_skc_to_tcp_sock(common) : NULL;
	if (!tcp)
		return 0;
	read_tuple(tcp, &own);
	saved = bpf_map_lookup_elem(&resumptions, &own);
	if (!saved)
		return 0;
	state = bpf_sk_storage_get(&resuming, tcp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!state || bpf_getsockopt(tcp, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
		return 0;
	/* It may not have come to an end since it moved last: what it has is not what it had. */
	if (saved->unknown && is_ours(name) && state->phase != PHASE_NORMAL) {
		state->phase = PHASE_CALLED_OFF;
		state->round_trip = 0;
		return 0;
	}
	/* A daemon before has put it there, whose programs put back what there was before. */
	if (is_ours(name) && state->phase == PHASE_NORMAL)
		return 0;
	if (!is_ours(name)) {
		__builtin_memcpy(state->own, name, sizeof(name));
		state->pacing = tcp->inet_conn.icsk_inet.sk.sk_pacing_status;
	}
	state->saved = *saved;
	state->phase = PHASE_RECONNAISSANCE;
	state->round_trip = 0;
	state->delivered = tcp->delivered;
	copy(name, ours);
	if (bpf_setsockopt(tcp, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
		state->phase = PHASE_NORMAL;
	else
		bpf_seq_write(context->meta->seq, &shown, sizeof(shown));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
