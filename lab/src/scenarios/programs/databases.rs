//! Databases: sessions with a state, queries that run, news that are pushed.

use super::{End, Program, Sign, table};

table![POSTGRESQL, POSTGRESQL_ROWS, MARIADB, REDIS];

/// PostgreSQL refuses to run as root. Its System V segment goes with the IPC namespace.
const POSTGRESQL_SERVER: &str = r#"
    cd "$DIR"
    export PATH="$(ls -d /usr/lib/postgresql/*/bin | tail -n 1):$PATH"
    mkdir data
    chown postgres data
    setpriv --reuid=postgres --regid=postgres --clear-groups initdb --no-sync --auth=trust --username=postgres data >&2
    echo "host all all all trust" >>data/pg_hba.conf
    exec unshare --ipc setpriv --reuid=postgres --regid=postgres --clear-groups postgres -D data \
        -c listen_addresses="$ADDRESS,127.0.0.1" -c port="$PORT" -c unix_socket_directories= -c fsync=off \
        -c tcp_keepalives_idle=1 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=3
"#;

/// A prepared statement and a temporary table exist in their session only. Each query runs for a second, across a move.
/// Keepalives of the server are as short as some administrators have them: they must not end the session.
const POSTGRESQL: Program = Program {
    name: "postgresql",
    description: "a session of psql with a temporary table, and a query that runs across each move",
    packages: &["postgresql-15", "postgresql-client-15"],
    prepare: r#"
        printf '%s;\n' 'CREATE TEMPORARY TABLE mine (n bigint)' 'INSERT INTO mine VALUES (1000000)' \
            "PREPARE ask (bigint) AS SELECT 'answer-' || (n + \$1) FROM (SELECT pg_sleep(1), n FROM mine) slow" \
            >"$DIR/begin.sql"
    "#,
    server: POSTGRESQL_SERVER,
    client: r#"
        cd "$DIR"
        { cat begin.sql; cat; } | stdbuf -oL psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 \
            "host=$ADDRESS port=$PORT user=postgres dbname=postgres sslmode=disable"
    "#,
    sign: Sign::Answers("EXECUTE ask({n});"),
    end: End::Line("\\q"),
    ..Program::USUAL
};

const POSTGRESQL_ROWS: Program = Program {
    name: "postgresql-rows",
    description: "psql receives half a million rows that the server generates meanwhile",
    packages: &["postgresql-15", "postgresql-client-15"],
    server: POSTGRESQL_SERVER,
    client: r#"
        cd "$DIR"
        echo "COPY (SELECT i, md5(i::text) FROM generate_series(1, 500000) i) TO STDOUT" >rows.sql
        exec psql --no-psqlrc --quiet --file=rows.sql --output=out/rows \
            "host=$ADDRESS port=$PORT user=postgres dbname=postgres sslmode=disable"
    "#,
    sign: Sign::Grows,
    verify: r#"
        exec /usr/bin/python3 -c '
import hashlib, sys
rows = (f"{i}\t{hashlib.md5(str(i).encode()).hexdigest()}\n" for i in range(1, 500001))
sys.exit(open(sys.argv[1]).read() != "".join(rows))
' "$OUT/rows"
    "#,
    ..Program::USUAL
};

/// A user variable exists in its session only.
const MARIADB: Program = Program {
    name: "mariadb",
    description: "a session of mariadb with a variable of its own, and a query that runs across each move",
    packages: &["mariadb-server", "mariadb-client"],
    prepare: r#"
        mariadb-install-db --no-defaults --user=root --datadir="$DIR/data" --skip-test-db \
            --auth-root-authentication-method=normal >"$DIR/install.log" 2>&1
    "#,
    server: r#"
        cd "$DIR"
        exec mariadbd --no-defaults --user=root --datadir="$DIR/data" --socket="$DIR/socket" --pid-file="$DIR/pid" \
            --bind-address="$ADDRESS" --port="$PORT" --skip-grant-tables --skip-name-resolve
    "#,
    client: r#"
        { echo 'SET @mine = 1000000;'; cat; } | mariadb --no-defaults --host="$ADDRESS" --port="$PORT" --user=root \
            --batch --skip-column-names --unbuffered
    "#,
    sign: Sign::Answers("SELECT CONCAT('answer-', @mine + {n} + SLEEP(1));"),
    end: End::Line("quit"),
    ..Program::USUAL
};

const REDIS: Program = Program {
    name: "redis",
    description: "redis-cli has subscribed to a channel, and is told every number that is published",
    packages: &["redis-server", "redis-tools"],
    server: r#"
        exec redis-server --bind "$ADDRESS" 127.0.0.1 --port "$PORT" --dir "$DIR" --save '' --protected-mode no \
            --tcp-keepalive 1
    "#,
    feed: r#"
        n=0
        while :; do
            n=$((n + 1))
            echo "PUBLISH news \"count $n\""
            sleep 0.05
        done | redis-cli -p "$PORT" >/dev/null
    "#,
    client: r#"exec stdbuf -oL redis-cli -h "$ADDRESS" -p "$PORT" SUBSCRIBE news"#,
    sign: Sign::Counts("count "),
    end: End::Killed,
    ..Program::USUAL
};
