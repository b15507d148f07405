//! Mail and news.

use super::{End, Program, Sign, table};

table![IMAP, POP3, SMTP, NNTP];

/// 24 messages of a megabyte, as a Maildir of a user of the system's, since Dovecot serves nobody as root.
const MAILBOX: &str = r#"
    mkdir -p "$FILES/Maildir/new" "$FILES/Maildir/cur" "$FILES/Maildir/tmp"
    for n in $(seq 24); do
        {
            printf '%s\n' 'From: a@example.org' 'To: b@example.org' "Subject: message $n" "Message-ID: <$n@example.org>" \
                'Date: Thu, 1 Jan 2026 00:00:00 +0000' ''
            head -c 740000 /dev/urandom | base64
        } >"$FILES/Maildir/new/1767225600.M$n.server"
    done
    chown -R mail:mail "$FILES/Maildir"
    mkdir -p "$OUT/mail/new" "$OUT/mail/cur" "$OUT/mail/tmp"
"#;

/// IMAP at `PORT`, POP3 at `NEXT`.
const DOVECOT: &str = "\
base_dir = $DIR/run
state_dir = $DIR/state
log_path = $DIR/log
protocols = imap pop3
listen = $ADDRESS
ssl = no
disable_plaintext_auth = no
auth_mechanisms = plain login
first_valid_uid = 1
mail_location = maildir:$FILES/Maildir
passdb {
  driver = static
  args = nopassword=y
}
userdb {
  driver = static
  args = uid=mail gid=mail home=$FILES
}
service imap-login {
  inet_listener imap {
    port = $PORT
  }
  inet_listener imaps {
    port = 0
  }
}
service pop3-login {
  inet_listener pop3 {
    port = $NEXT
  }
  inet_listener pop3s {
    port = 0
  }
}
";

const MBSYNC: &str = "\
IMAPAccount far
Host $ADDRESS
Port $PORT
User b
Pass secret
SSLType None
AuthMechs LOGIN
Timeout 60

IMAPStore far
Account far

MaildirStore near
Inbox $OUT/mail

Channel all
Far :far:
Near :near:
Sync Pull
SyncState $DIR/state-
";

/// The bodies of all messages, whatever their order and names, and however a line ends.
const SAME_BODIES: &str = r#"
    bodies() {
        find "$1" -type f -path '*/[cn][ue][rw]/*' | while read -r message; do
            tr -d '\r' <"$message" | sed '1,/^$/d' | sha256sum
        done | sort
    }
    bodies "$FILES/Maildir" >"$DIR/wanted"
    test "$(wc -l <"$DIR/wanted")" = 24
    bodies "$OUT" | cmp - "$DIR/wanted"
"#;

const IMAP: Program = Program {
    name: "imap",
    description: "mbsync copies a mailbox from Dovecot",
    packages: &["dovecot-imapd", "dovecot-pop3d", "isync"],
    configuration: &[("dovecot.conf", DOVECOT), ("mbsyncrc", MBSYNC)],
    prepare: MAILBOX,
    server: r#"exec dovecot -F -c "$DIR/dovecot.conf""#,
    client: r#"exec mbsync --config="$DIR/mbsyncrc" --quiet all"#,
    verify: SAME_BODIES,
    ..Program::USUAL
};

const POP3: Program = Program {
    name: "pop3",
    description: "mpop fetches a mailbox from Dovecot",
    packages: &["dovecot-imapd", "dovecot-pop3d", "mpop"],
    client: r#"
        exec mpop --host="$ADDRESS" --port="$NEXT" --tls=off --auth=user --user=b --passwordeval='echo secret' \
            --delivery=maildir,"$OUT/mail" --uidls-file="$DIR/uidls" --keep=on
    "#,
    ..IMAP
};

const EXIM: &str = "\
primary_hostname = server.example.org
local_interfaces = <; $ADDRESS.$PORT
spool_directory = $OUT/spool
log_file_path = $OUT/spool/%slog
pid_file_path = $OUT/spool/pid
message_size_limit = 0
keep_environment =
host_lookup =
tls_advertise_hosts =
acl_smtp_rcpt = everybody
begin acl
everybody:
  accept
begin routers
everybody:
  driver = accept
  transport = file
begin transports
file:
  driver = appendfile
  file = $OUT/mail/inbox
  user = Debian-exim
  message_prefix =
  message_suffix =
";

/// The message grows in the server's spool.
const SMTP: Program = Program {
    name: "smtp",
    description: "msmtp hands a message of 24 MB to Exim",
    packages: &["exim4-daemon-light", "msmtp"],
    configuration: &[("exim.conf", EXIM)],
    prepare: r#"
        {
            printf '%s\n' 'From: a@example.org' 'To: b@example.org' 'Subject: a large one' ''
            head -c 18000000 /dev/urandom | base64
        } >"$DIR/message"
        mkdir "$OUT/spool" "$OUT/mail"
        chown Debian-exim "$OUT/spool" "$OUT/mail"
    "#,
    server: r#"exec exim4 -C "$DIR/exim.conf" -bdf"#,
    client: r#"
        exec msmtp --host="$ADDRESS" --port="$PORT" --tls=off --auth=off --from=a@example.org b@example.org <"$DIR/message"
    "#,
    verify: r#"
        sed '1,/^$/d' "$DIR/message" >"$DIR/wanted"
        sed '1,/^$/d' "$OUT/mail/inbox" | cmp - "$DIR/wanted"
    "#,
    ..Program::USUAL
};

/// One connection; every article is asked for when it is wanted.
const NNTP: Program = Program {
    name: "nntp",
    description: "a newsgroup's articles are read one by one",
    packages: &["sn", "python3"],
    prepare: r#"
        export SNROOT="$FILES"
        snnewgroup local.test
        for n in $(seq 100); do
            printf '%s\r\n' 'From: a@example.org' 'Newsgroups: local.test' "Subject: $n" "Message-ID: <$n@example.org>" \
                'Date: Thu, 1 Jan 2026 00:00:00 +0000' '' "answer-$((n + 1000000))" .
        done | snstore
    "#,
    server: r#"
        exec systemd-socket-activate --accept --inetd --listen="$ADDRESS:$PORT" --setenv="SNROOT=$FILES" /usr/sbin/snntpd
    "#,
    client: r#"
        exec /usr/bin/python3 -W ignore -c '
import nntplib, os, sys

with nntplib.NNTP(os.environ["ADDRESS"], int(os.environ["PORT"])) as news:
    news.group("local.test")
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        _, article = news.body(f"<{line.strip()}@example.org>")
        print(*(line.decode() for line in article.lines), sep="\n", flush=True)
'
    "#,
    sign: Sign::Answers("{n}"),
    end: End::Line("quit"),
    ..Program::USUAL
};
