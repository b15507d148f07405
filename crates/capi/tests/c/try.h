/* Says what was expected, and where, and ends. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "whimbrel.h"

#define EXPECT(is)                                                                                                        \
	do {                                                                                                              \
		if (!(is)) {                                                                                              \
			fprintf(stderr, "%s:%d: expected %s (errno: %s; reason: %s)\n", __FILE__, __LINE__, #is,          \
				strerror(errno), wb_reason());                                                            \
			exit(1);                                                                                          \
		}                                                                                                         \
	} while (0)

#define FAILS(call, with) EXPECT((errno = 0, (call) == -1 && errno == (with)))
