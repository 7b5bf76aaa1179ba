#!/usr/bin/env bash
# Two "hosts" on one machine, a and b, joined by one cable (a veth pair): each has its own network, hostname, process ids,
# /proc, IPC, /dev/shm, HOME and sshd. The machine's own network is not touched, the hosts have none but their cable, and
# with the first process of a host everything of it ends.
#
#   two_hosts.sh up DIR MODELS NAME=VALUE…   make them, with these variables in each login; where MODELS is a folder, a
#                                            has a copy of it in its place, and b an empty folder; exit 77 where two hosts
#                                            are not permitted
#   two_hosts.sh cut DIR                     pull the cable out of b
#   two_hosts.sh heal DIR                    put it back
#   two_hosts.sh aside DIR                   join them by a second cable, over which new logins from a to b go
#   two_hosts.sh down DIR                    end every process of both
set -euo pipefail

action=$1 dir=$2 models=${3:-}
shift $(($# < 3 ? $# : 3))
variables=("$@")
skip() { echo "$*" >&2; exit 77; }
enter() { local pid; pid=$(cat "$dir/$1.pid"); shift; nsenter -t "$pid" -m -u -i -n -p -- "$@"; }

permitted() {
    [ "$(id -u)" = 0 ] || skip "needs root"
    for tool in unshare nsenter ip ssh ssh-keygen; do command -v "$tool" >/dev/null || skip "no $tool"; done
    [ -x /usr/sbin/sshd ] || skip "no sshd (Debian, Ubuntu: openssh-server)"
    unshare -m -u -i -n -p -f --mount-proc true 2>/dev/null || skip "namespaces are not permitted here"
    unshare -n ip link add t0 type veth peer name t1 2>/dev/null || skip "veth pairs are not permitted here"
}

# bash as process 1 collects orphans; with its end the kernel ends everything of this host.
host_up() {
    local name=$1 root="$dir/$1" mount=:
    mkdir -p "$root/home/.local/bin"
    chmod 700 "$root/home"
    if [ -n "$models" ]; then
        if [ "$name" = a ]; then cp -a "$models" "$root/models"; else mkdir "$root/models"; fi
        mount="mount --bind '$root/models' '$models'"
    fi
    printf '127.0.0.1 localhost\n10.77.0.1 spark-a\n10.77.0.2 spark-b\n' >"$root/hosts"
    cat >"$root/ssh_config" <<CONF
Host *
    IdentityFile $dir/client
    IdentitiesOnly yes
    UserKnownHostsFile $dir/known_hosts
    StrictHostKeyChecking yes
CONF
    cat >"$root/sshd_config" <<CONF
HostKey $dir/host_$name
AuthorizedKeysFile $dir/client.pub
PasswordAuthentication no
StrictModes no
PermitRootLogin prohibit-password
UsePAM no
PidFile none
SetEnv HOME=$root/home TMPDIR=/run PIP_NO_INDEX=1 PIP_FIND_LINKS=$dir/wheels$(printf ' "%s"' "${variables[@]}")
CONF
    setsid unshare -m -u -i -n -p -f --mount-proc --kill-child bash -c "
        hostname spark-$name
        mount -t tmpfs -o size=2g shm /dev/shm
        mount -t tmpfs -o mode=755 run /run
        mkdir -p /run/sshd
        mount --bind '$root/hosts' /etc/hosts
        mount --bind '$root/ssh_config' /etc/ssh/ssh_config
        $mount
        ip link set lo up
        /usr/sbin/sshd -f '$root/sshd_config' -E '$root/sshd.log'
        touch '$root/up'
        while :; do sleep 3600 & wait \$!; done" </dev/null >"$root/holder.log" 2>&1 &
    local outer=$! inner=""
    for _ in $(seq 600); do
        inner=$(tr -d ' ' <"/proc/$outer/task/$outer/children" 2>/dev/null || true)
        [ -n "$inner" ] && [ -e "$root/up" ] && break
        sleep 0.05
    done
    [ -e "$root/up" ] || { cat "$root/holder.log" >&2; exit 1; }
    echo "$outer" >"$dir/$name.outer"
    echo "$inner" >"$dir/$name.pid"
}

up() {
    permitted
    mkdir -p "$dir/wheels" # what pip of a host finds
    for key in client host_a host_b; do ssh-keygen -q -t ed25519 -N '' -C two-hosts -f "$dir/$key"; done
    for name in a b; do
        local number=1
        [ "$name" = a ] || number=2
        echo "spark-$name,10.77.0.$number $(cut -d' ' -f1,2 "$dir/host_$name.pub")" >>"$dir/known_hosts"
    done
    host_up a
    host_up b
    nsenter -t "$(cat "$dir/a.pid")" -n ip link add eth0 type veth peer name eth0 netns "$(cat "$dir/b.pid")"
    enter a ip addr add 10.77.0.1/24 dev eth0
    enter b ip addr add 10.77.0.2/24 dev eth0
    enter a ip link set eth0 up
    enter b ip link set eth0 up
}

aside() {
    nsenter -t "$(cat "$dir/a.pid")" -n ip link add eth1 type veth peer name eth1 netns "$(cat "$dir/b.pid")"
    for name in a b; do
        enter "$name" ip addr add "10.78.0.$([ "$name" = a ] && echo 1 || echo 2)/24" dev eth1
        enter "$name" ip link set eth1 up
    done
    printf '127.0.0.1 localhost\n10.77.0.1 spark-a\n10.78.0.2 spark-b\n' >"$dir/a/hosts"
}

down() {
    for file in "$dir"/?.pid "$dir"/?.outer; do
        [ -e "$file" ] && kill -KILL "$(cat "$file")" 2>/dev/null || true
    done
}

case "$action" in
    up) up ;;
    cut) enter b ip link set eth0 down ;;
    heal) enter b ip link set eth0 up ;;
    aside) aside ;;
    down) down ;;
esac
