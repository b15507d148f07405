//! Other hosts' terminals and screens.

use super::files::{SSH_CLIENT, SSH_SERVER, SSHD};
use super::{End, Program, Sign, table};

table![SSH, TELNET, X11, VNC];

const SSH: Program = Program {
    name: "ssh",
    description: "a shell is typed into over ssh",
    packages: &["openssh-server", "openssh-client"],
    configuration: &[("sshd_config", SSHD), ("ssh_config", SSH_CLIENT)],
    server: SSH_SERVER,
    client: r#"exec script --quiet --flush --command "ssh -tt -F $DIR/ssh_config -p $PORT root@$ADDRESS sh -i" /dev/null"#,
    sign: Sign::Answers("sleep 0.5; echo answer-$(({n} + 1000000))"),
    end: End::Line("exit"),
    ..Program::USUAL
};

const TELNET: Program = Program {
    name: "telnet",
    description: "a shell is typed into over telnet",
    packages: &["inetutils-telnetd", "inetutils-telnet"],
    server: r#"
        exec systemd-socket-activate --accept --inetd --listen="$ADDRESS:$PORT" \
            /usr/sbin/telnetd --no-hostinfo --exec-login='/bin/sh -i'
    "#,
    client: r#"exec script --quiet --flush --command "telnet $ADDRESS $PORT" /dev/null"#,
    sign: Sign::Answers("sleep 0.5; echo answer-$(({n} + 1000000))"),
    end: End::Line("exit"),
    ..Program::USUAL
};

/// The number of the display is `PORT` less 6000 (X Window System Protocol, X11 Release 6.8, appendix B). The client
/// learns of every change, and asks for the value then.
const X11: Program = Program {
    name: "x11",
    description: "an X client watches a property of the server's root window",
    packages: &["xvfb", "x11-utils"],
    server: r#"
        exec Xvfb ":$((PORT - 6000))" -nolock -nolisten unix -nolisten local -listen tcp -ac -screen 0 640x480x24
    "#,
    feed: r#"
        n=0
        while :; do
            n=$((n + 1))
            xprop -display "127.0.0.1:$((PORT - 6000))" -root -format WHIMBREL 32c -set WHIMBREL "$n"
            sleep 0.1
        done
    "#,
    client: r#"exec stdbuf -oL xprop -display "$ADDRESS:$((PORT - 6000))" -root -spy WHIMBREL"#,
    sign: Sign::Climbs("WHIMBREL(CARDINAL) = "),
    end: End::Killed,
    ..Program::USUAL
};

/// The screen looks different all the time, and so do the pictures.
const VNC: Program = Program {
    name: "vnc",
    description: "vncsnapshot takes pictures of a screen that changes",
    packages: &["tigervnc-standalone-server", "vncsnapshot", "x11-xserver-utils"],
    server: r#"
        exec Xtigervnc ":$((PORT - 5900))" -rfbport "$PORT" -nolock -nolisten unix -nolisten local -listen tcp -ac \
            -SecurityTypes None -geometry 640x480 -depth 24
    "#,
    feed: r#"
        n=0
        while :; do
            n=$((n + 1))
            xsetroot -display "127.0.0.1:$((PORT - 5900))" -mod $((n % 16 + 1)) $((n % 15 + 1)) -fg red -bg white
            sleep 0.1
        done
    "#,
    client: r#"exec vncsnapshot -quiet -allowblank -nocursor -encodings raw -fps 1 -count 100000 "$ADDRESS:$((PORT - 5900))" "$OUT/picture.jpg""#,
    end: End::Killed,
    verify: r#"test "$(sha256sum "$OUT"/picture*.jpg | cut -d' ' -f1 | sort -u | wc -l)" -ge 4"#,
    ..Program::USUAL
};
