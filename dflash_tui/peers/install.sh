# Install dflash-tui into our own folder on the host that runs this text, as `sh install.sh WHEEL SIZE VERSION`.
# stdin has the wheel, stdout gets one line with the result. The new environment gets its own folder, and a link is
# switched to it once it works: an environment cannot be moved, and ranks that run from an earlier one continue.
# If stdin ends before that, the other side is gone, and nothing is left behind.
exec 2>/dev/null # the shell's own words would end it where nothing reads them
PATH="$HOME/.local/bin:$PATH"
export PYTHONSAFEPATH=1
wheel=$1 size=$2 version=$3 new= watcher=

end() { # KIND TEXT
    [ -z "$watcher" ] || kill "$watcher" 2>/dev/null
    [ "$1" = installed ] || rm -rf "$new"
    printf 'dflash-tui-install %s %s\n' "$1" "$(printf %s "$2" | tail -c 1500 | tr '\n' ' ')"
    exit
}

remove_others() { # earlier and unfinished environments, which the link does not name and no process uses
    for old in "$home"/program-*; do
        [ -d "$old" ] && [ "$old" != "$new" ] && [ "$(readlink "$home/program")" != "${old##*/}" ] || continue
        printf %s "$old/" | grep -aqsF -f - /proc/[0-9]*/cmdline || rm -rf "$old"
    done
}

for python in python3 python3.12 python3.13 python3.11 python3.14; do
    "$python" -I -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))" </dev/null >/dev/null && break
    python=
done
[ "$python" ] || end python

umask 077
home=${XDG_DATA_HOME:-$HOME/.local/share}/dflash-tui
said=$(mkdir -p "$home" 2>&1 && : 2>&1 >>"$home/program.lock") || end write "$said"
exec 9>"$home/program.lock"
flock -n 9 || end busy
remove_others
new=$(mktemp -d "$home/program-XXXXXX") || end write
trap 'rm -rf "$new"; exit' TERM
head -c "$size" >"$new/$wheel"
[ "$(wc -c <"$new/$wheel")" -eq "$size" ] || end cut
exec 3<&0
{ cat <&3 && kill -TERM 0; } >/dev/null 9>&- &
watcher=$!
cd /
said=$("$python" -I -m venv "$new" 2>&1 </dev/null) || end venv "$said"
set -- --only-binary=:all: --no-input --disable-pip-version-check --quiet
said=$("$new/bin/python" -I -m pip install "$@" "$new/$wheel" 2>&1 </dev/null) || end pip "$said"
said=$("$new/bin/dflash-tui" --version 2>&1 </dev/null) && [ "$said" = "dflash-tui $version" ] || end check "$said"
rm "$new/$wheel"
said=$(ln -sfn "${new##*/}" "$home/program" 2>&1) || end write "$said"
remove_others
end installed "$home/program $("$python" -I -c 'import platform; print(platform.python_version())')"
