/* What programs do wrong. A daemon runs. */
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include "try.h"

int main(void)
{
	static char much[(1 << 20) + 1];
	struct sockaddr_in address = {.sin_family = AF_INET};
	struct wb_received received;
	struct wb_question question;
	struct wb_outcome outcome;
	struct wb_uuid uuid;
	char text[WB_UUID_TEXT];
	int file = open("/dev/null", O_RDWR);
	int local = socket(AF_UNIX, SOCK_STREAM, 0);
	int tcp = wb_socket(AF_INET, SOCK_STREAM, 0, NULL, 0);
	int closed = dup(tcp);

	close(closed);
	EXPECT(file >= 0 && local >= 0 && tcp >= 0);
	FAILS(wb_uuid_of(file, &uuid), ENOTSOCK);
	FAILS(wb_uuid_of(closed, &uuid), EBADF);
	FAILS(wb_uuid_of(-1, &uuid), EBADF);
	FAILS(wb_uuid_of(local, &uuid), EPROTONOSUPPORT);
	FAILS(wb_uuid_of(tcp, NULL), EFAULT);
	FAILS(wb_export(file, &uuid), ENOTSOCK);
	FAILS(wb_export(tcp, NULL), EFAULT);
	FAILS(wb_rebuild(NULL), EFAULT);
	FAILS(wb_rebuild_text(NULL), EFAULT);
	FAILS(wb_rebuild_text("00000000-0000-4000-8000-000000000000"), ENOENT);
	FAILS(wb_bind(file, (struct sockaddr *)&address, sizeof(address)), ENOTSOCK);
	FAILS(wb_bind(tcp, NULL, 0), EFAULT);
	FAILS(wb_bind(tcp, (struct sockaddr *)&address, 1), EINVAL);

	FAILS(wb_give(file, "there", NULL, NULL, 0, -1), ENOTSOCK);
	FAILS(wb_give(closed, "there", NULL, NULL, 0, -1), EBADF);
	FAILS(wb_give(local, "there", NULL, NULL, 0, -1), EPROTONOSUPPORT);
	FAILS(wb_give(tcp, NULL, NULL, NULL, 0, -1), EFAULT);
	FAILS(wb_give(tcp, "there", NULL, NULL, 5, -1), EFAULT);
	FAILS(wb_give(tcp, "there", NULL, much, sizeof(much), -1), EMSGSIZE);
	FAILS(wb_give(tcp, "\xff", NULL, NULL, 0, -1), EINVAL);
	FAILS(wb_give(tcp, "nowhere", NULL, NULL, 0, -1), ENOENT);
	FAILS(wb_give(tcp, "full", NULL, NULL, 0, -1), ECANCELED);
	EXPECT(strcmp(wb_reason(), "there is no room there") == 0);
	/* A line that is as long as one can be. */
	FAILS(wb_give(tcp, "full", NULL, much, sizeof(much) - 1, -1), ECANCELED);

	FAILS(wb_prepare(file, "there", NULL, -1), ENOTSOCK);
	FAILS(wb_prepare(closed, "there", NULL, -1), EBADF);
	FAILS(wb_prepare(local, "there", NULL, -1), EPROTONOSUPPORT);
	FAILS(wb_prepare(tcp, NULL, NULL, -1), EFAULT);
	FAILS(wb_prepare(tcp, "there", "\xff", -1), EINVAL);
	FAILS(wb_prepare(tcp, "nowhere", NULL, -1), ENOENT);
	FAILS(wb_prepare(tcp, "full", NULL, -1), ECANCELED);
	EXPECT(strcmp(wb_reason(), "there is no room there") == 0);

	EXPECT((errno = 0, wb_receiver_open(NULL) == NULL && errno == EFAULT));
	FAILS(wb_receive(NULL, &received, 0), EFAULT);
	FAILS(wb_receiver_fd(NULL), EFAULT);
	wb_receiver_close(NULL);
	wb_received_free(NULL);
	FAILS(wb_migrator_next(NULL, &question, 0), EFAULT);
	FAILS(wb_migrator_answer(NULL, 1, NULL), EFAULT);
	wb_migrator_close(NULL);
	FAILS(wb_move_next(NULL, &outcome, 0), EFAULT);
	wb_move_close(NULL);
	EXPECT((errno = 0, wb_move_start(NULL, 1, "there", NULL) == NULL && errno == EFAULT));
	EXPECT((errno = 0, wb_move_process(-1, "there") == NULL && errno == ESRCH));
	FAILS(wb_sockets(-1, NULL, 0), ESRCH);
	FAILS(wb_sockets(getpid(), NULL, 1), EFAULT);

	EXPECT(wb_uuid_parse("0b5f8c1e-42d7-4a63-9c1b-7e35d20f6a98", &uuid) == 0);
	EXPECT(uuid.bytes[0] == 0x0b && uuid.bytes[15] == 0x98);
	EXPECT(wb_uuid_format(&uuid, text) == 0 && strcmp(text, "0b5f8c1e-42d7-4a63-9c1b-7e35d20f6a98") == 0);
	FAILS(wb_uuid_parse("0b5f8c1e", &uuid), EINVAL);
	FAILS(wb_uuid_parse(NULL, &uuid), EFAULT);
	FAILS(wb_uuid_format(&uuid, NULL), EFAULT);
	puts("ok");
	return 0;
}
