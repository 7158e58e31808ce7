# Stops the server of a directory and deletes the directory when standard input closes.
#
# The pipe closes when its owner drops it, panics, is interrupted or is killed with SIGKILL, so one path covers all
# cases. $1: the directory. $2: the server's pid file. $3: the signal that ends the server quickly.
# Without $2 and $3, the script kills all processes that have the directory in their environment as a mark. An Erlang
# server is a tree of sessions and daemons: no pid file and no process group covers all of them.
trap '' INT TERM HUP
read -r _
marked() {
    grep -lzxF "RELEVO_SERVER_DIRECTORY=$1" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3
}
if [ -z "$2" ]; then
    while pids=$(marked "$1") && [ -n "$pids" ]; do
        # Unquoted, so that the shell splits the list.
        kill -s KILL $pids 2>/dev/null
        sleep 0.02
    done
    rm -rf "$1"
    exit
fi
ours() {
    # The pid of a stale file may belong to another process by now. A zombie has no command line.
    tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "$1"
}
pid=$(head -n 1 "$2" 2>/dev/null)
if [ -n "$pid" ] && ours "$1"; then
    kill -s "$3" "$pid"
    while ours "$1"; do sleep 0.02; done
elif [ -n "$pid" ]; then
    # A PostgreSQL that was killed and not restarted leaves its shared memory behind. Line 7 has its id.
    ipcrm -m "$(sed -n '7s/^ *[0-9]* *//p' "$2")" 2>/dev/null
fi
rm -rf "$1"
