/*
 * The names of SOCKMAND (Torp, "SOCKMAND: Socket Migration and Anchor Nodes", section 4.7) for libwhimbrel, so that
 * programs that were written for it work unchanged. New ones do better with whimbrel.h: sockets are the kernel's, and
 * all of POSIX works on them.
 *
 * Where it differs from the thesis: a socket may be of IPv6; flags of sm_recvfrom() and sm_sendto() work; sm_listen()
 * has a queue; where no daemon runs sm_socket() gives a plain socket. All return -1 with errno on failure.
 */

#ifndef LIBSOCKMAND_H
#define LIBSOCKMAND_H

#include <stdio.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "whimbrel.h"

/*
 * A socket that can change machines. mcappolicy 0: its anchor (the thesis's MCAP) is this host; another: the migrator
 * is asked where it is to be (wb_migrator_open()).
 */
static inline int sm_socket(int domain, int type, int protocol, int mcappolicy)
{
	char anchor[24];

	snprintf(anchor, sizeof(anchor), "policy:%u", (unsigned int)mcappolicy);
	return wb_socket(domain, type, protocol, mcappolicy == 0 ? "self" : anchor, 0);
}

/* Binds it to a port at its anchor. */
static inline int sm_bind(int sockfd, const struct sockaddr *addr, socklen_t addrlen)
{
	return wb_bind(sockfd, addr, addrlen);
}

static inline int sm_listen(int sockfd, int backlog)
{
	return listen(sockfd, backlog);
}

static inline int sm_accept(int sockfd, struct sockaddr *addr, socklen_t *addrlen)
{
	return accept(sockfd, addr, addrlen);
}

static inline int sm_connect(int sockfd, const struct sockaddr *addr, socklen_t addrlen)
{
	return connect(sockfd, addr, addrlen);
}

static inline int sm_close(int sockfd)
{
	return close(sockfd);
}

static inline int sm_read(int sockfd, void *buf, size_t count)
{
	return (int)read(sockfd, buf, count);
}

static inline int sm_write(int sockfd, const void *buf, size_t count)
{
	return (int)send(sockfd, buf, count, MSG_NOSIGNAL);
}

static inline int sm_sendto(int sockfd, const void *buf, size_t len, int flags, const struct sockaddr *dest_addr, socklen_t addrlen)
{
	return (int)sendto(sockfd, buf, len, flags, dest_addr, addrlen);
}

static inline int sm_recvfrom(int sockfd, void *buf, size_t len, int flags, struct sockaddr *src_addr, socklen_t *addrlen)
{
	return (int)recvfrom(sockfd, buf, len, flags, src_addr, addrlen);
}

/*
 * The socket's UUID, for sm_rebuildsocket() on the host to which it is moved: the first 31 bits of the name that
 * wb_uuid_of() gives. The daemon keeps the socket from now on (wb_export()), as the thesis has it: the program may end
 * before the socket is moved.
 */
static inline int sm_getuuid(int sockfd)
{
	struct wb_uuid uuid;

	if (wb_export(sockfd, &uuid) != 0)
		return -1;
	return uuid.bytes[0] << 24 | uuid.bytes[1] << 16 | uuid.bytes[2] << 8 | uuid.bytes[3];
}

/* A socket that was moved here, or exported here. */
static inline int sm_rebuildsocket(int uuid)
{
	char text[9];

	snprintf(text, sizeof(text), "%08x", (unsigned int)uuid);
	return wb_rebuild_text(text);
}

#endif
