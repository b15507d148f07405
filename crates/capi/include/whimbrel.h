/*
 * libwhimbrel: sockets that can change machines (whimbrel(3)).
 *
 * Generated from crates/capi; do not edit. Link with -lwhimbrel.
 *
 * All functions are thread-safe, but for handles that are being closed. None is async-signal-safe; those that wait go
 * on after a signal. None raises SIGPIPE. Descriptors that they give are the program's to close, but where it is said
 * otherwise.
 */

#ifndef WHIMBREL_H
#define WHIMBREL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/**
 * Bytes of a socket's name as text, its end included.
 */
#define WB_UUID_TEXT 37

/**
 * For wb_socket(): hosts that run Whimbrel are not told where the socket is, beside its anchor, so that all that they
 * send goes by that.
 */
#define WB_HIDDEN 1

/**
 * For wb_socket(): fail where a plain socket would be given instead.
 */
#define WB_REQUIRED 2

/**
 * The one who is asked: wb_migrator_open(). Several threads may use one; they wait for one another.
 */
struct wb_migrator;

/**
 * Sockets that are on their way to another host. Several threads may use one; they wait for one another.
 */
struct wb_move;

/**
 * A name under which sockets are received: wb_receiver_open(). Several threads may use one; they wait for one another.
 */
struct wb_receiver;

/**
 * The name of a socket for its life, on whichever host it is. Who knows it may take the socket where that waits for
 * its program: keep it like a password.
 */
struct wb_uuid {
    /**
     * In the order in which they are written.
     */
    uint8_t bytes[16];
};

/**
 * A socket that has come.
 */
struct wb_received {
    /**
     * The socket. It is closed by execve(2), and is the program's to close.
     */
    int socket;
    /**
     * Its name.
     */
    struct wb_uuid uuid;
    /**
     * The key of the host that gave it, as text.
     */
    char from[64];
    /**
     * Its own address and port.
     */
    struct sockaddr_storage local;
    /**
     * The other end's; of the unspecified address and port 0 where it is not connected.
     */
    struct sockaddr_storage remote;
    /**
     * What the program there has given with it: `state_length` bytes, and a zero behind them; never NULL.
     * wb_received_free() frees it.
     */
    uint8_t *state;
    /**
     * Its length.
     */
    size_t state_length;
};

/**
 * A program wants a socket whose anchor is "policy:NUMBER".
 */
struct wb_question {
    /**
     * Names the question.
     */
    uint64_t number;
    /**
     * What the program has asked for.
     */
    unsigned int policy;
    /**
     * Its process, in the daemon's PID namespace.
     */
    pid_t process;
    /**
     * Its name.
     */
    char name[16];
};

/**
 * A socket that a process has open.
 */
struct wb_socket_info {
    /**
     * Its name.
     */
    struct wb_uuid uuid;
    /**
     * The first of the process's descriptors of it.
     */
    int descriptor;
    /**
     * AF_INET or AF_INET6.
     */
    int domain;
    /**
     * SOCK_STREAM or SOCK_DGRAM.
     */
    int type;
    /**
     * Whether it listens.
     */
    int listening;
    /**
     * Its own address and port.
     */
    struct sockaddr_storage local;
    /**
     * The other end's; of the unspecified address and port 0 where it is not connected.
     */
    struct sockaddr_storage remote;
    /**
     * Why it cannot be moved, where that is known beforehand; else empty.
     */
    char reason[256];
};

/**
 * What became of a socket.
 */
struct wb_outcome {
    /**
     * Its name.
     */
    struct wb_uuid uuid;
    /**
     * Whether it is with the other host now. If not, it stayed and goes on.
     */
    int moved;
    /**
     * As it was here.
     */
    struct sockaddr_storage local;
    /**
     * As it was here; of the unspecified address and port 0 where it is not connected.
     */
    struct sockaddr_storage remote;
    /**
     * Why it stayed; else empty.
     */
    char reason[256];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Why the last call of this library in this thread failed, as a sentence: what errno cannot say, such as why a socket
 * was kept. Empty where none has failed. It counts until the next call of this library in this thread.
 */
const char *wb_reason(void);

/**
 * Hands a socket to another host, with what the program there needs to go on with it: `state`, `length` bytes (at most
 * 1 MiB; NULL where there is none). `to` is a host as for wb_socket(). `receiver` is the name that a program there
 * receives under (wb_receiver_open()); where it is NULL the socket waits there for wb_rebuild(). `timeout` is in
 * milliseconds, -1 for none. The program should not read or write meanwhile: what it does before the socket stops
 * counts, what it does after fails. A socket that listens, or one of UDP that is bound and not connected, goes with
 * the address that it is bound to, or else with this host's preferred one.
 *
 * Returns 0: the socket is there, and all descriptors of it here are at their end; or -1 with errno. ECANCELED: it
 * stayed and goes on, and wb_reason() tells why. ENOENT: no such host is known. ETIMEDOUT: nothing is decided yet, and
 * it may still go. EMSGSIZE: there is too much state. EOPNOTSUPP: this host moves no sockets. EFAULT: `to` is NULL, or
 * `state` with a length. EINVAL: not UTF-8. EBADF, ENOTSOCK, EPROTONOSUPPORT, ECONNREFUSED, EACCES as wb_uuid_of().
 * ECONNABORTED: it is lost, or has gone and was not heard of, and wb_reason() tells which, and where what was in it is
 * kept. With all but this and ETIMEDOUT the socket is as it was.
 */
int wb_give(int socket, const char *to, const char *receiver, const void *state, size_t length, int timeout);

/**
 * Sees to it that a host is ready for a socket, which goes on meanwhile: so that the program need be silent only for
 * the last moment, in a wb_give() with the same `to` and `receiver` within half a minute. Nothing happens to the
 * socket before that, or if that does not come. `timeout` is in milliseconds, -1 for none. It may take seconds where
 * the host is hard to reach. The socket has to be connected.
 *
 * Returns 0: all is ready; or -1 with errno. ECANCELED: the host does not take the socket as things stand, and
 * wb_reason() tells why. ETIMEDOUT: nobody knows yet. EOPNOTSUPP: this host moves no sockets. EPROTONOSUPPORT: it is
 * of another protocol, or not connected. ENOENT, EFAULT, EINVAL, EBADF, ENOTSOCK, ECONNREFUSED, EACCES as wb_give().
 */
int wb_prepare(int socket, const char *to, const char *receiver, int timeout);

/**
 * Receives sockets under a name from now on. One program of a host may have a name.
 *
 * Returns what wb_receive() takes, to be closed by wb_receiver_close(), or NULL with errno: EADDRINUSE, somebody
 * receives under this name; EFAULT, `name` is NULL; EINVAL, it is not UTF-8; EOPNOTSUPP, this host moves no sockets;
 * ECONNREFUSED, EACCES and ETIMEDOUT as wb_uuid_of().
 */
struct wb_receiver *wb_receiver_open(const char *name);

/**
 * A descriptor that is readable when sockets may have come, for poll(2). Then call wb_receive() with a time-out of 0
 * until it fails with EAGAIN. It belongs to the receiver.
 *
 * Returns -1 with errno EFAULT where `receiver` is NULL.
 */
int wb_receiver_fd(const struct wb_receiver *receiver);

/**
 * Waits for a socket, for so many milliseconds; -1 without end.
 *
 * Returns 0, or -1 with errno: EAGAIN, none has come; ECONNRESET, the daemon has ended: open another receiver; EMFILE,
 * one came that this process has no descriptor for, and it is lost; EFAULT, a pointer is NULL.
 */
int wb_receive(struct wb_receiver *receiver, struct wb_received *received, int timeout);

/**
 * Frees what wb_receive() has made beside the socket, which stays open. NULL is passed over.
 */
void wb_received_free(struct wb_received *received);

/**
 * Receives no more under this name. Sockets that have come and were not taken are closed. NULL is passed over.
 */
void wb_receiver_close(struct wb_receiver *receiver);

/**
 * Is asked, from now on, which host is to be the anchor of a socket whose program names a policy.
 *
 * Returns what wb_migrator_next() takes, to be closed by wb_migrator_close(), or NULL with errno: EADDRINUSE, there is
 * a migrator already; ECONNREFUSED, EACCES and ETIMEDOUT as wb_uuid_of().
 */
struct wb_migrator *wb_migrator_open(void);

/**
 * A descriptor that is readable when there may be a question, for poll(2). Then call wb_migrator_next() with a
 * time-out of 0 until it fails with EAGAIN. It belongs to the migrator.
 *
 * Returns -1 with errno EFAULT where `migrator` is NULL.
 */
int wb_migrator_fd(const struct wb_migrator *migrator);

/**
 * Waits for a question, for so many milliseconds; -1 without end. The program is refused when it is not answered for
 * two seconds.
 *
 * Returns 0, or -1 with errno: EAGAIN, there is none; ECONNRESET, the daemon has ended; EFAULT, a pointer is NULL.
 */
int wb_migrator_next(struct wb_migrator *migrator, struct wb_question *question, int timeout);

/**
 * Answers a question: `anchor` as for wb_socket(), but no policy. NULL: the program is refused. An answer that comes
 * too late is passed over.
 *
 * Returns 0, or -1 with errno: EFAULT, `migrator` is NULL; EINVAL, `anchor` is not UTF-8; EPIPE, the daemon has ended.
 */
int wb_migrator_answer(struct wb_migrator *migrator, uint64_t question, const char *anchor);

/**
 * Is asked no more. NULL is passed over.
 */
void wb_migrator_close(struct wb_migrator *migrator);

/**
 * Lists the sockets of TCP and UDP of a process, by its number in the daemon's PID namespace; writes at most `room` of
 * them.
 *
 * Returns how many there are, which may be more, or -1 with errno: ESRCH, no such process; EFAULT, `sockets` is NULL
 * with room; ECONNREFUSED, EACCES and ETIMEDOUT as wb_uuid_of().
 */
int wb_sockets(pid_t process, struct wb_socket_info *sockets, size_t room);

/**
 * Begins to move all sockets of a process, as wb_move_start() does: while whoever calls this moves the process itself.
 * They wait there until wb_rebuild() takes them, each by its name.
 */
struct wb_move *wb_move_process(pid_t process, const char *to);

/**
 * Begins to move connections to a host, `to` and `receiver` as for wb_give(). Each of the `count` connections is named
 * by an address and port of either end ("192.0.2.1:22") or a process ("pid:4711").
 *
 * Returns what wb_move_next() takes, to be closed by wb_move_close(), or NULL with errno: EFAULT, a pointer is NULL;
 * EINVAL, text is not UTF-8; ECONNREFUSED, EACCES and ETIMEDOUT as wb_uuid_of(). What the daemon says comes by
 * wb_move_next().
 */
struct wb_move *wb_move_start(const char *const *connections, unsigned int count, const char *to, const char *receiver);

/**
 * A descriptor that is readable when something may have become of a socket, for poll(2). Then call wb_move_next() with
 * a time-out of 0 until it fails with EAGAIN, or all is told. It belongs to the move.
 *
 * Returns -1 with errno EFAULT where `moving` is NULL.
 */
int wb_move_fd(const struct wb_move *moving);

/**
 * Waits for what becomes of the next socket, for so many milliseconds; -1 without end. A migrator that is told of one
 * that stayed can still have its process stay too.
 *
 * Returns 1 and the outcome; 0 where all is told; or -1 with errno: EAGAIN, nothing is decided yet; ENOENT, the daemon
 * knows no such connection or host; EOPNOTSUPP, it moves none; ECONNRESET, it has ended, and what was not told is not
 * known; EFAULT, a pointer is NULL.
 */
int wb_move_next(struct wb_move *moving, struct wb_outcome *outcome, int timeout);

/**
 * Waits no more for what becomes of the sockets; those that are on their way go on. NULL is passed over.
 */
void wb_move_close(struct wb_move *moving);

/**
 * The name of a socket of TCP or UDP, which it keeps wherever it goes.
 *
 * Returns 0, or -1 with errno: EBADF or ENOTSOCK, the descriptor is none of a socket; EPROTONOSUPPORT, a socket, but
 * of neither TCP nor UDP; EFAULT, `uuid` is NULL; ECONNREFUSED, no daemon runs; EACCES, this user may not ask it;
 * ETIMEDOUT, it does not answer.
 */
int wb_uuid_of(int socket, struct wb_uuid *uuid);

/**
 * Has the daemon keep a socket as well, so that it outlives this program, or is moved without it: until it is moved,
 * or wb_rebuild() takes it back, or five minutes have passed. The program's own descriptor stays as it is; it should
 * not read or write any more before it ends.
 *
 * Returns 0 and the socket's name, or -1 with errno as wb_uuid_of(); ENOBUFS, the daemon keeps as many as it will.
 */
int wb_export(int socket, struct wb_uuid *uuid);

/**
 * Takes a socket that waits on this host for its program: it was exported here, or has come from another host without
 * a program to receive it. It is as it was: connected or listening, with its options and all that was not read. The
 * new descriptor is closed by execve(2).
 *
 * Returns the descriptor, or -1 with errno: ENOENT, no socket of this name waits here (it may not have come yet);
 * EFAULT, `uuid` is NULL; ECONNREFUSED, EACCES and ETIMEDOUT as wb_uuid_of().
 */
int wb_rebuild(const struct wb_uuid *uuid);

/**
 * As wb_rebuild(), by the name as text, or the first eight digits of it where no other waits that begins so.
 */
int wb_rebuild_text(const char *uuid);

/**
 * Writes a name as text: 8-4-4-4-12 hexadecimal digits. `text` has room for WB_UUID_TEXT bytes.
 *
 * Returns 0, or -1 with errno EFAULT: a pointer is NULL.
 */
int wb_uuid_format(const struct wb_uuid *uuid, char *text);

/**
 * Reads a name as wb_uuid_format() has written it.
 *
 * Returns 0, or -1 with errno: EINVAL, it is none; EFAULT, a pointer is NULL.
 */
int wb_uuid_parse(const char *text, struct wb_uuid *uuid);

/**
 * A socket as by socket(2) that can change machines; `anchor` is the host that the other end takes it to be at, and
 * that forwards once it has moved. All of POSIX works on it: it is the kernel's own, and no data goes through this
 * library.
 *
 * `anchor` is NULL or "self": this host, which is the default and needs no configuration; "none": no host, the socket
 * is not to be moved; "nearest", "stable" or "auto": the daemon chooses one that lends addresses; "policy:NUMBER": the
 * migrator is asked; or a host, by its name, address, key, or number as a peer. `flags`: WB_HIDDEN, WB_REQUIRED.
 *
 * Where no daemon runs, or this user may not ask it, or the socket is of neither TCP nor UDP over IP, it is a plain
 * socket. The ports of a socket whose anchor is another host are that host's: one that the kernel draws is free there,
 * another is leased by wb_bind(); bind(2) to one that is not on lease fails with EADDRINUSE.
 *
 * Returns the descriptor, or -1 with errno: as socket(2); EINVAL, `flags` or `anchor` are none; ENOENT, no such anchor
 * is known; EOPNOTSUPP, it lends nothing; with WB_REQUIRED also ECONNREFUSED, no daemon runs, EACCES, this user may
 * not ask it, and EPROTONOSUPPORT, such sockets are not moved.
 */
int wb_socket(int domain, int type, int protocol, const char *anchor, unsigned int flags);

/**
 * As bind(2), for any socket: where its anchor is another host it leases the port there. The unspecified address
 * stands for the anchor's.
 *
 * Returns 0, or -1 with errno: as bind(2); EADDRINUSE, the port is taken, at the anchor too; ECONNREFUSED, EACCES and
 * ETIMEDOUT as wb_uuid_of(), where the daemon has to be asked.
 */
int wb_bind(int socket, const struct sockaddr *address, socklen_t length);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WHIMBREL_H */
