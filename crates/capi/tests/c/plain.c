/* No daemon runs: sockets are plain ones, and what needs a daemon says so. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include "try.h"

int main(void)
{
	const char *anchors[] = {NULL, "self", "none", "auto", "192.0.2.1", "policy:3"};
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(address);
	struct wb_uuid uuid;
	char byte = 'x';
	int server, client, accepted, other;

	for (size_t i = 0; i < sizeof(anchors) / sizeof(*anchors); i++) {
		server = wb_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0, anchors[i], 0);
		EXPECT(server >= 0);
		EXPECT(fcntl(server, F_GETFD) == FD_CLOEXEC);
		address.sin_port = 0;
		EXPECT(wb_bind(server, (struct sockaddr *)&address, sizeof(address)) == 0);
		EXPECT(listen(server, 1) == 0);
		EXPECT(getsockname(server, (struct sockaddr *)&address, &length) == 0);

		/* Taken. */
		other = wb_socket(AF_INET, SOCK_STREAM, IPPROTO_TCP, anchors[i], 0);
		FAILS(wb_bind(other, (struct sockaddr *)&address, sizeof(address)), EADDRINUSE);
		close(other);

		client = wb_socket(AF_INET, SOCK_STREAM, 0, anchors[i], 0);
		EXPECT(fcntl(client, F_GETFD) == 0);
		EXPECT(connect(client, (struct sockaddr *)&address, sizeof(address)) == 0);
		accepted = accept(server, NULL, NULL);
		EXPECT(accepted >= 0);
		EXPECT(write(client, &byte, 1) == 1 && read(accepted, &byte, 1) == 1);
		close(accepted);
		close(client);
		close(server);
	}

	client = wb_socket(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK, 0, "auto", 0);
	EXPECT(client >= 0 && fcntl(client, F_GETFL) & O_NONBLOCK);
	close(client);
	/* What cannot be moved is a plain socket too. */
	client = wb_socket(AF_UNIX, SOCK_STREAM, 0, NULL, 0);
	EXPECT(client >= 0);
	close(client);

	FAILS(wb_socket(AF_INET, SOCK_STREAM, 0, NULL, WB_REQUIRED), ECONNREFUSED);
	FAILS(wb_socket(AF_INET, SOCK_STREAM, 0, "auto", WB_REQUIRED), ECONNREFUSED);
	FAILS(wb_socket(AF_UNIX, SOCK_STREAM, 0, NULL, WB_REQUIRED), EPROTONOSUPPORT);
	FAILS(wb_socket(AF_INET, SOCK_STREAM, 0, NULL, 4096), EINVAL);
	FAILS(wb_socket(AF_INET, SOCK_STREAM, 0, "\xff", 0), EINVAL);
	FAILS(wb_socket(AF_INET, 77, 0, NULL, 0), EINVAL);

	client = wb_socket(AF_INET, SOCK_STREAM, 0, NULL, 0);
	FAILS(wb_uuid_of(client, &uuid), ECONNREFUSED);
	FAILS(wb_export(client, &uuid), ECONNREFUSED);
	FAILS(wb_rebuild_text("00000000"), ECONNREFUSED);
	FAILS(wb_prepare(client, "198.51.100.7", NULL, -1), ECONNREFUSED);
	FAILS(wb_give(client, "198.51.100.7", NULL, NULL, 0, -1), ECONNREFUSED);
	FAILS(wb_sockets(getpid(), NULL, 0), ECONNREFUSED);
	EXPECT((errno = 0, wb_receiver_open("films") == NULL && errno == ECONNREFUSED));
	EXPECT((errno = 0, wb_migrator_open() == NULL && errno == ECONNREFUSED));
	EXPECT((errno = 0, wb_move_process(getpid(), "there") == NULL && errno == ECONNREFUSED));
	EXPECT(strstr(wb_reason(), "no daemon answers") != NULL);
	close(client);
	puts("ok");
	return 0;
}
