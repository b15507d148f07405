/* All calls, as they are meant. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "try.h"

static int pair_of(int *other)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(address);
	int server = socket(AF_INET, SOCK_STREAM, 0), client;

	EXPECT(bind(server, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(server, 1) == 0);
	EXPECT(getsockname(server, (struct sockaddr *)&address, &length) == 0);
	client = wb_socket(AF_INET, SOCK_STREAM, 0, "self", WB_REQUIRED);
	EXPECT(client >= 0);
	EXPECT(connect(client, (struct sockaddr *)&address, sizeof(address)) == 0);
	*other = accept(server, NULL, NULL);
	EXPECT(*other >= 0);
	close(server);
	return client;
}

static void give_and_receive(void)
{
	struct wb_receiver *receiver = wb_receiver_open("films");
	struct wb_received got;
	struct wb_uuid uuid;
	struct sockaddr_in name;
	socklen_t length = sizeof(name);
	char bytes[6] = "";
	int other, client = pair_of(&other);

	EXPECT(receiver != NULL);
	EXPECT((errno = 0, wb_receiver_open("films") == NULL && errno == EADDRINUSE));
	FAILS(wb_receive(receiver, &got, 0), EAGAIN);
	EXPECT(wb_uuid_of(client, &uuid) == 0);
	EXPECT(wb_prepare(client, "there", "films", 10000) == 0);
	EXPECT(write(other, "hello", 5) == 5);
	EXPECT(wb_give(client, "there", "films", "frame\0 17", 9, -1) == 0);

	struct pollfd ready = {.fd = wb_receiver_fd(receiver), .events = POLLIN};
	EXPECT(poll(&ready, 1, 10000) == 1);
	EXPECT(wb_receive(receiver, &got, 0) == 0);
	EXPECT(memcmp(&got.uuid, &uuid, sizeof(uuid)) == 0);
	EXPECT(got.state_length == 9 && memcmp(got.state, "frame\0 17", 10) == 0);
	EXPECT(strcmp(got.from, "uM5ahVGHtdMGk2zVxpGZpaHZ0oTnSYfDwDMLnX1jkEo") == 0);
	EXPECT(getpeername(client, (struct sockaddr *)&name, &length) == 0);
	EXPECT(((struct sockaddr_in *)&got.remote)->sin_port == name.sin_port && got.remote.ss_family == AF_INET);
	close(client);
	EXPECT(read(got.socket, bytes, 5) == 5 && strcmp(bytes, "hello") == 0);
	wb_received_free(&got);
	EXPECT(got.state == NULL);
	wb_received_free(&got);
	close(got.socket);
	close(other);

	/* Without state. */
	client = pair_of(&other);
	EXPECT(wb_give(client, "there", "films", NULL, 0, 10000) == 0);
	EXPECT(wb_receive(receiver, &got, -1) == 0 && got.state_length == 0 && got.state[0] == 0);
	wb_received_free(&got);
	close(got.socket);
	close(client);
	close(other);
	FAILS(wb_give(pair_of(&other), "there", "others", NULL, 0, -1), ECANCELED);
	wb_receiver_close(receiver);
}

static void export_and_rebuild(void)
{
	struct wb_uuid uuid;
	int other, client = pair_of(&other), again;
	char byte;

	EXPECT(wb_export(client, &uuid) == 0);
	close(client);
	again = wb_rebuild(&uuid);
	EXPECT(again >= 0);
	EXPECT(write(again, "x", 1) == 1 && read(other, &byte, 1) == 1 && byte == 'x');
	FAILS(wb_rebuild(&uuid), ENOENT);
	close(again);
	EXPECT(read(other, &byte, 1) == 0);
	close(other);
}

static void list_and_move(void)
{
	struct wb_socket_info infos[1];
	struct wb_outcome outcome;
	struct wb_move *moving;
	const char *named[] = {"192.0.2.10:51514"};

	EXPECT(wb_sockets(getpid(), NULL, 0) == 2);
	EXPECT(wb_sockets(getpid(), infos, 1) == 2);
	EXPECT(infos[0].descriptor == 3 && infos[0].domain == AF_INET && infos[0].type == SOCK_STREAM && !infos[0].listening);
	EXPECT(ntohs(((struct sockaddr_in *)&infos[0].remote)->sin_port) == 443 && infos[0].reason[0] == 0);

	moving = wb_move_process(getpid(), "there");
	EXPECT(moving != NULL);
	EXPECT(wb_move_next(moving, &outcome, -1) == 1 && outcome.moved && outcome.reason[0] == 0);
	EXPECT(ntohs(((struct sockaddr_in *)&outcome.local)->sin_port) == 51514);
	EXPECT(wb_move_next(moving, &outcome, -1) == 1 && !outcome.moved);
	EXPECT(strcmp(outcome.reason, "there is no room there") == 0);
	EXPECT(wb_move_next(moving, &outcome, -1) == 0);
	EXPECT(wb_move_next(moving, &outcome, -1) == 0);
	wb_move_close(moving);

	moving = wb_move_start(named, 1, "nowhere", NULL);
	EXPECT(moving != NULL);
	FAILS(wb_move_next(moving, &outcome, -1), ENOENT);
	wb_move_close(moving);
}

static void *ask(void *policy)
{
	return (void *)(intptr_t)wb_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0, policy, WB_REQUIRED);
}

static void be_migrator(void)
{
	struct wb_migrator *migrator = wb_migrator_open();
	struct wb_question question;
	pthread_t asker;
	void *made;

	EXPECT(migrator != NULL && wb_migrator_fd(migrator) >= 0);
	FAILS(wb_migrator_next(migrator, &question, 0), EAGAIN);
	EXPECT(pthread_create(&asker, NULL, ask, "policy:7") == 0);
	EXPECT(wb_migrator_next(migrator, &question, -1) == 0 && question.policy == 7);
	EXPECT(question.process == getpid() && question.name[0] != 0);
	EXPECT(wb_migrator_answer(migrator, question.number, "there") == 0);
	EXPECT(pthread_join(asker, &made) == 0 && (intptr_t)made >= 0);
	close((int)(intptr_t)made);

	EXPECT(pthread_create(&asker, NULL, ask, "policy:8") == 0);
	EXPECT(wb_migrator_next(migrator, &question, -1) == 0 && question.policy == 8);
	EXPECT(wb_migrator_answer(migrator, question.number, NULL) == 0);
	EXPECT(pthread_join(asker, &made) == 0 && (intptr_t)made == -1);
	wb_migrator_close(migrator);
}

int main(void)
{
	give_and_receive();
	export_and_rebuild();
	list_and_move();
	be_migrator();
	puts("ok");
	return 0;
}
