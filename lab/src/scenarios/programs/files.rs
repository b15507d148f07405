//! Files: copies, and shares.

use super::{End, Move, Program, Sign, table};

table![RSYNC, GIT, FTP_PASSIVE, FTP_ACTIVE, FTP_PASSIVE_AGAIN, FTP_ACTIVE_AGAIN, SAMBA, NFS];

/// A file that takes half a minute over the slow network, and many small ones.
const TREE: &str = r#"
    head -c 24000000 /dev/urandom >"$FILES/large"
    mkdir "$FILES/small"
    head -c 400000 /dev/urandom | split -b 1000 -a 3 - "$FILES/small/"
    chmod -R a+rX "$FILES"
"#;

const RSYNC: Program = Program {
    name: "rsync",
    description: "rsync copies a tree from rsync's daemon",
    packages: &["rsync"],
    configuration: &[("rsyncd.conf", "use chroot = no\nuid = root\ngid = root\n[files]\npath = $FILES\n")],
    prepare: TREE,
    server: r#"
        exec rsync --daemon --no-detach --address="$ADDRESS" --port="$PORT" --config="$DIR/rsyncd.conf" --log-file="$DIR/log"
    "#,
    client: r#"exec rsync --archive "rsync://$ADDRESS:$PORT/files/" "$OUT/""#,
    verify: r#"exec diff -r "$FILES" "$OUT""#,
    ..Program::USUAL
};

pub(super) const SSHD: &str = "\
ListenAddress $ADDRESS
Port $PORT
HostKey $DIR/host
AuthorizedKeysFile $DIR/user.pub
PidFile none
UsePAM no
StrictModes no
UseDNS no
PasswordAuthentication no
PermitRootLogin prohibit-password
ClientAliveInterval 0
";

pub(super) const SSH_CLIENT: &str = "\
IdentityFile $DIR/user
IdentitiesOnly yes
UserKnownHostsFile $DIR/known_hosts
";

pub(super) const SSH_SERVER: &str = r#"
    for key in host user; do ssh-keygen -q -t ed25519 -N '' -f "$DIR/$key"; done
    echo "[$ADDRESS]:$PORT $(cat "$DIR/host.pub")" >"$DIR/known_hosts"
    mkdir -p /run/sshd
    exec /usr/sbin/sshd -D -e -f "$DIR/sshd_config"
"#;

const GIT: Program = Program {
    name: "git-ssh",
    description: "git clones a repository over ssh",
    packages: &["git", "openssh-server", "openssh-client"],
    configuration: &[("sshd_config", SSHD), ("ssh_config", SSH_CLIENT)],
    prepare: r#"
        git init --quiet "$FILES/origin"
        cd "$FILES/origin"
        git config core.compression 0
        head -c 24000000 /dev/urandom >large
        git add large
        git -c user.name=a -c user.email=a@example.org commit --quiet --message=large
    "#,
    server: SSH_SERVER,
    client: r#"
        export GIT_SSH_COMMAND="ssh -F $DIR/ssh_config"
        exec git clone --quiet "ssh://root@$ADDRESS:$PORT$FILES/origin" "$OUT/copy"
    "#,
    verify: r#"
        cmp "$FILES/origin/large" "$OUT/copy/large"
        exec git -C "$OUT/copy" fsck --strict
    "#,
    ..Program::USUAL
};

const FTP_PACKAGES: &[&str] = &["vsftpd", "tnftp"];

/// A hundred small files, each with the answer to its name, and a large one.
const FTP_FILES: &str = r#"
    head -c 24000000 /dev/urandom >"$FILES/large"
    for n in $(seq 100); do echo "answer-$((n + 1000000))" >"$FILES/$n"; done
    chmod -R a+rX "$FILES"
    mkdir -p /run/vsftpd/empty
"#;

const VSFTPD: &str = "\
listen=YES
background=NO
listen_address=$ADDRESS
listen_port=$PORT
anonymous_enable=YES
no_anon_password=YES
local_enable=NO
anon_root=$FILES
connect_from_port_20=NO
seccomp_sandbox=NO
isolate=NO
isolate_network=NO
secure_chroot_dir=/run/vsftpd/empty
";

/// The data connection is moved as the control connection is, which has the last word.
const FTP_PASSIVE: Program = Program {
    name: "ftp-passive",
    description: "ftp gets a file, its data connection opened by the client",
    packages: FTP_PACKAGES,
    configuration: &[("vsftpd.conf", VSFTPD)],
    prepare: FTP_FILES,
    server: r#"exec /usr/sbin/vsftpd "$DIR/vsftpd.conf""#,
    client: r#"
        cd "$OUT"
        printf '%s\n' 'user anonymous a@example.org' binary 'get large' quit | tnftp -p -n -v "$ADDRESS" "$PORT"
    "#,
    connections: 2,
    verify: r#"exec cmp "$FILES/large" "$OUT/large""#,
    ..Program::USUAL
};

const FTP_ACTIVE: Program = Program {
    name: "ftp-active",
    description: "the same, its data connection opened by the server",
    client: r#"
        cd "$OUT"
        printf '%s\n' 'user anonymous a@example.org' binary 'get large' quit | tnftp -A -n -v "$ADDRESS" "$PORT"
    "#,
    ..FTP_PASSIVE
};

/// What is shipped for FTP.
const FTP_POLICY: &str = "\
[[policy]]
program = \"vsftpd\"
view = \"lasting\"

[[policy]]
program = \"tnftp\"
view = \"lasting\"
";

/// Every file has a data connection of its own, to the address of the server's end of the control connection (EPSV, RFC
/// 2428), and vsftpd takes it only from the address that the client's end had. Behind a NAT too.
const FTP_PASSIVE_AGAIN: Program = Program {
    name: "ftp-passive-again",
    description: "ftp gets more files after each move, over data connections that the client opens then",
    policy: FTP_POLICY,
    client: r#"
        { printf '%s\n' 'user anonymous a@example.org' binary; cat; } | stdbuf -oL tnftp -p -n -v "$ADDRESS" "$PORT"
    "#,
    sign: Sign::Answers("get {n} -"),
    connections: 1,
    // A data connection that is being opened while its host moves is too young to be moved.
    begun: false,
    end: End::Line("quit"),
    verify: "",
    ..FTP_PASSIVE
};

/// The client listens at the address that its end of the control connection had, and tells it to vsftpd, which takes no
/// other (EPRT, RFC 2428), and binds to the address that its own end had. Nothing gets in through a NAT, as ever with
/// active FTP.
const FTP_ACTIVE_AGAIN: Program = Program {
    name: "ftp-active-again",
    description: "the same, over data connections that the server opens then",
    client: r#"
        { printf '%s\n' 'user anonymous a@example.org' binary; cat; } | stdbuf -oL tnftp -A -n -v "$ADDRESS" "$PORT"
    "#,
    moves: &[Move::Client, Move::Server],
    ..FTP_PASSIVE_AGAIN
};

const SMBD: &str = "\
[global]
private dir = $DIR/private
state directory = $DIR/state
cache directory = $DIR/cache
lock directory = $DIR/lock
pid directory = $DIR/pid
ncalrpc dir = $DIR/rpc
log file = $DIR/logs/%m
smb ports = $PORT
disable netbios = yes
smb2 max read = 65536
map to guest = Bad User
load printers = no
[files]
path = $FILES
guest ok = yes
";

const SMBCLIENT: &str = "\
[global]
private dir = $HOME
lock directory = $HOME
";

/// With reads as large as smbd allows by default, smbclient asks for more at once than the slow network carries in the
/// 20 seconds that it waits for an answer.
const SAMBA: Program = Program {
    name: "samba",
    description: "smbclient gets a file from a share",
    packages: &["samba", "smbclient"],
    configuration: &[("smb.conf", SMBD), ("client.conf", SMBCLIENT)],
    prepare: TREE,
    server: r#"
        cd "$DIR"
        mkdir private state cache lock pid rpc logs
        exec smbd --foreground --no-process-group --configfile="$DIR/smb.conf"
    "#,
    client: r#"
        cd "$OUT"
        exec smbclient --configfile="$DIR/client.conf" --port="$PORT" --no-pass --timeout=60 --command='get large' "//$ADDRESS/files"
    "#,
    verify: r#"exec cmp "$FILES/large" "$OUT/large""#,
    ..Program::USUAL
};

/// NFS version 4 alone, which has one port; the client has no kernel's part either.
const GANESHA: &str = "\
NFS_CORE_PARAM {
    Protocols = 4;
    NFS_Port = $PORT;
    Enable_NLM = false;
    Enable_RQUOTA = false;
    Enable_UDP = false;
}
NFSV4 {
    Graceless = true;
    RecoveryRoot = $DIR/recovery;
    Minor_Versions = 0;
}
NFS_KRB5 {
    Active_krb5 = false;
}
EXPORT {
    Export_Id = 1;
    Path = $FILES;
    Pseudo = /files;
    Access_Type = RO;
    Squash = None;
    SecType = sys;
    Transports = TCP;
    Protocols = 4;
    FSAL {
        Name = VFS;
    }
}
";

const NFS: Program = Program {
    name: "nfs",
    description: "a file is copied from an NFS server (version 4), all of it in user space",
    packages: &["nfs-ganesha", "nfs-ganesha-vfs", "libnfs-utils"],
    configuration: &[("ganesha.conf", GANESHA)],
    prepare: r#"
        head -c 24000000 /dev/urandom >"$FILES/large"
        mkdir "$DIR/recovery"
    "#,
    server: r#"exec ganesha.nfsd -F -f "$DIR/ganesha.conf" -L "$DIR/log" -p "$DIR/pid" -N WARN"#,
    client: r#"exec nfs-cp "nfs://$ADDRESS/files/large?version=4&nfsport=$PORT" "$OUT/large""#,
    verify: r#"exec cmp "$FILES/large" "$OUT/large""#,
    ..Program::USUAL
};
