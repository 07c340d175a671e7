#!/bin/sh
# PostgreSQL's own benchmark, `pgbench`, with 1, 4 and 16 clients, on directories of several file systems. The server
# waits for each commit until it is stable (its defaults: fsync, synchronous_commit). Needs root: the server runs as
# the user `postgres`. Says what is missing if it is not installed.
#
#   scripts/bench-pgbench.sh SCRATCH NAME=DIRECTORY...
#
# SECONDS_EACH (10), SCALE (10): how long a row takes, and how many times 100,000 accounts there are.
set -eu
scratch=$1
shift
seconds=${SECONDS_EACH:-10} scale=${SCALE:-10}

programs=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
if [ -z "$programs" ] || ! [ -x "$programs/pgbench" ] || ! id postgres >/dev/null 2>&1; then
    echo "pgbench: PostgreSQL is missing (Debian: postgresql, postgresql-contrib): no rows"
    exit 0
fi

mkdir -p "$scratch"
chown postgres "$scratch"
data=
as_postgres() {
    program=$1
    shift
    setpriv --reuid=postgres --regid=postgres --clear-groups \
        env PGDATA="$data" PGHOST="$scratch" LC_ALL=C "$programs/$program" "$@"
}
stop() {
    [ -z "$data" ] || as_postgres pg_ctl stop -s -w -m fast >/dev/null 2>&1 || true
}
trap stop EXIT
cd "$scratch"

printf '%-22s %7s %12s %12s\n' "pgbench" "clients" "commits/s" "average us"
for mount in "$@"; do
    name=${mount%%=*} data="${mount#*=}/postgres"
    mkdir "$data"
    chown postgres "$data"
    chmod 700 "$data"
    as_postgres initdb -A trust >/dev/null
    as_postgres pg_ctl start -s -w -l "$scratch/log" \
        -o "-c listen_addresses= -c max_wal_size=256MB -k $scratch" >/dev/null
    as_postgres pgbench -i -q -s "$scale" postgres >/dev/null 2>&1
    for clients in 1 4 16; do
        as_postgres pgbench -n -c "$clients" -j 2 -T "$seconds" postgres >"$scratch/row" 2>/dev/null
        rate=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$scratch/row")
        late=$(sed -n 's/^latency average = \([0-9.]*\) ms/\1/p' "$scratch/row")
        printf '%-22s %7s %12.0f %12.0f\n' "$name, mounted" "$clients" "$rate" \
            "$(awk "BEGIN { print $late * 1000 }")"
    done
    as_postgres pg_ctl stop -s -w -m fast
    data=
done
