# Ends the server of a directory and removes the directory, once standard input closes.
#
# The pipe closes when its owner drops it, and also when the owner panics, is interrupted or is killed with SIGKILL,
# so one path covers every way out. $1: the directory. $2: the server's pid file. $3: the signal that ends it quickly.
# Without $2 and $3 every process is ended that has the directory in its environment as its mark: an Erlang server
# is a tree of sessions and daemons that no pid file and no process group holds together.
trap '' INT TERM HUP
read -r _
marked() {
    grep -lzxF "RELEVO_SERVER_DIRECTORY=$1" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3
}
if [ -z "$2" ]; then
    while pids=$(marked "$1") && [ -n "$pids" ]; do
        # Split on purpose.
        kill -s KILL $pids 2>/dev/null
        sleep 0.02
    done
    rm -rf "$1"
    exit
fi
ours() {
    # A pid in a stale file may belong to somebody else by now; a zombie has no command line.
    tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "$1"
}
pid=$(head -n 1 "$2" 2>/dev/null)
if [ -n "$pid" ] && ours "$1"; then
    kill -s "$3" "$pid"
    while ours "$1"; do sleep 0.02; done
elif [ -n "$pid" ]; then
    # A PostgreSQL that was killed and not started again leaves its shared memory to the system; line 7 has its id.
    ipcrm -m "$(sed -n '7s/^ *[0-9]* *//p' "$2")" 2>/dev/null
fi
rm -rf "$1"
