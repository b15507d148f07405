/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef WHIMBREL_FIELD_H
#define WHIMBREL_FIELD_H

/*
 * A member of the context or of a socket. The verifier wants each read by an instruction of its own, at a fixed offset;
 * the compiler would reckon an address where two branches read different ones.
 */
#define FIELD(base, member)                                                                                            \
	({                                                                                                             \
		__u32 value;                                                                                           \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                                                                  \
			     : "=r"(value)                                                                             \
			     : "r"(base), "i"(__builtin_offsetof(typeof(*(base)), member)));                           \
		value;                                                                                                 \
	})

#endif
