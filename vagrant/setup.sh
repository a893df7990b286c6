#!/usr/bin/env bash
# Sets the machine up for the testbed: Debian packages, then the Python environment .venv from the lock files.
# The one place that names the Debian packages. Run it as root, or as a user with sudo (used for apt-get alone).
# A second run does nothing; one that was interrupted is made good by the next.
# Exit codes: 0 good, 1 --check found something missing, 2 wrong usage, 3 the machine lacks something (it says what).
set -euo pipefail

debian_packages=(
    mininet             # the emulator; lives in the distribution's Python
    openvswitch-switch  # the switches
    iperf3              # link rates, raw flows
    ethtool             # offloads off
    iproute2            # ip, tc
    iputils-ping        # pingall
    tcpdump             # captures
    python3-venv        # .venv
    make                # make demo, make test
)
mooncake_packages=(
    libibverbs1         # the engine is linked against it, and uses it only where there are RDMA devices
)
system_python=/usr/bin/python3
imports='
import mininet.net, pandas, pyarrow.parquet, pydantic, yaml, networkx, plotly, typer, pyroute2, scapy
import eventlet.wsgi
eventlet.wsgi.ALREADY_HANDLED = object()  # Ryu 4.34 looks for it; current eventlet has it no more
import ryu.base.app_manager, os_ken.base.app_manager
'

usage() {
    cat <<'TEXT'
usage: bash vagrant/setup.sh [--dev] [--mooncake] [--check]

Installs the Debian packages that are missing and makes .venv from the lock files.
  --dev       the test tools too (pytest, ruff, mypy, import-linter), and --mooncake, so that its tests run
  --mooncake  the Mooncake Transfer Engine too (46 MB), for transport.kind: mooncake
  --check     say what is missing, change nothing; exits 1 if anything is
TEXT
}

say() { printf '%s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 3
}

dev=false
mooncake=false
check=false
for argument in "$@"; do
    case $argument in
        --dev) dev=true; mooncake=true ;;
        --mooncake) mooncake=true ;;
        --check) check=true ;;
        -h | --help) usage; exit 0 ;;
        *) printf 'setup: unknown argument: %s\n\n' "$argument" >&2; usage >&2; exit 2 ;;
    esac
done

if $mooncake; then debian_packages+=("${mooncake_packages[@]}"); fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
venv=$root/.venv
stamp=$venv/.zcube-stamp   # what is finished in .venv, one line a part
marker=$venv/.zcube-venv   # this .venv was made here, so it may be thrown away
unset PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1

# One run at a time. The lock is the script itself: nothing is left behind. pip inherits it, so that a pip which
# outlives a killed run is waited for.
exec 9<"${BASH_SOURCE[0]}" || exit 3
flock -n 9 || { say "setup: waiting for another set-up in this folder to end"; flock 9; }

type -P dpkg-query apt-get >/dev/null || fail \
    "this is not a Debian-like system (no dpkg and apt-get)." \
    "Use Debian 12, or the virtual machine: cd vagrant && vagrant up"

# --- what is missing ------------------------------------------------------------------------------------------
missing_packages() {
    local installed package
    installed=" $(dpkg-query -W -f='${Package}:${db:Status-Status} ' "${debian_packages[@]}" 2>/dev/null || true) "
    for package in "${debian_packages[@]}"; do
        [[ $installed == *" $package:installed "* ]] || printf '%s\n' "$package"
    done
}
mapfile -t missing < <(missing_packages)

digest() { cat -- "$@" | sha256sum | cut -c1-64; }
# Parts: `base` (everything at run time), `dev` (test tools), `mooncake` (that extra), `project` (the entry points).
keys() {
    local base
    base=$( { digest vagrant/setup.sh requirements-build.lock requirements.lock
              printf '%s\n' "$root" "$(readlink -f "$system_python" || true)"; } | digest -)
    printf 'base %s\n' "$base"
    printf 'project %s\n' "$( { printf '%s\n' "$base"; digest pyproject.toml; } | digest -)"
    printf 'dev %s\n' "$( { printf '%s\n' "$base"; digest requirements-dev.lock; } | digest -)"
    printf 'mooncake %s\n' "$( { printf '%s\n' "$base"; digest requirements-mooncake.lock; } | digest -)"
}
mapfile -t wanted < <(keys)   # base, project, dev, mooncake
done_already() { [[ -f $stamp ]] && grep -qxF -- "$1" "$stamp"; }
parts=(0 1)
if $dev; then parts+=(2); fi
if $mooncake; then parts+=(3); fi
todo=()
for part in "${parts[@]}"; do
    done_already "${wanted[part]}" || todo+=("${wanted[part]%% *}")
done
[[ -x $venv/bin/python && -x $venv/bin/zcube ]] || todo=(base project)
if [[ " ${todo[*]-} " == *" base "* ]]; then
    todo=(base project)
    if $dev; then todo+=(dev); fi
    if $mooncake; then todo+=(mooncake); fi
fi

if ((${#missing[@]} == 0 && ${#todo[@]} == 0)); then
    say "setup: nothing to install: the Debian packages and .venv are as the lock files say."
    exit 0
fi

# --- say it first ---------------------------------------------------------------------------------------------
count() { grep -c '==' "$1"; }
say "setup: what this run does"
if ((${#missing[@]})); then
    say "  Debian packages to install (apt-get, without recommended ones): ${missing[*]}"
else
    say "  Debian packages to install: none, all ${#debian_packages[@]} are there"
fi
for part in "${todo[@]}"; do
    case $part in
        base) say "  Python environment to make: .venv in this folder, with $(count requirements.lock) pinned packages (from the package index, hashes checked)" ;;
        project) say "  the command to put there: .venv/bin/zcube" ;;
        dev) say "  test tools to add to .venv: $(count requirements-dev.lock) pinned packages" ;;
        mooncake) say "  the Mooncake Transfer Engine to add to .venv: $(count requirements-mooncake.lock) pinned packages" ;;
    esac
done
say "  left alone: the system's Python packages, settings (sysctls included), network and services"
if [[ " ${missing[*]-} " == *" openvswitch-switch "* ]]; then
    say "  note: Debian's openvswitch-switch starts its own daemons on this machine when it is installed. The testbed"
    say "        does not use them: every run starts its own inside a sandbox. To stop them:"
    say "        systemctl disable --now openvswitch-switch"
fi

if $check; then exit 1; fi

# Run by sudo in a user's clone: the user owns what was made, also when it was not finished.
log=$(mktemp)
finish() {
    local owner
    rm -f -- "$log"
    owner=$(stat -c %u:%g -- "$root")
    if ((EUID == 0)) && [[ $owner != 0:* && -d $venv ]]; then chown -R -h -- "$owner" "$venv"; fi
}
trap finish EXIT

# --- Debian packages ------------------------------------------------------------------------------------------
if ((${#missing[@]})); then
    by_hand="apt-get update && apt-get install --no-install-recommends ${missing[*]}"
    as_root=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || fail \
            "Debian packages are missing, and this is neither root nor a user with sudo." "As root: $by_hand"
        as_root=(sudo)
        [[ -t 0 ]] || as_root=(sudo -n)
    fi
    # Descriptor 9 is closed: a daemon started by a package would keep the lock for ever.
    apt() {
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" \
            </dev/null >"$log" 2>&1 9<&- || { tail -n 40 -- "$log" >&2; return 1; }
    }
    say "setup: apt-get update"
    apt update || fail "apt-get update failed." "See why: sudo apt-get update"
    say "setup: apt-get install ${missing[*]}"
    apt install -y --no-install-recommends "${missing[@]}" || fail \
        "apt-get install failed." "Try by hand, as root: $by_hand"
    mapfile -t missing < <(missing_packages)
    ((${#missing[@]} == 0)) || fail "still missing after apt-get install: ${missing[*]}" "Try by hand, as root: $by_hand"
fi

# --- Python environment ---------------------------------------------------------------------------------------
mapfile -t wanted < <(keys)   # again: the interpreter may have come only now
"$system_python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail \
    "$system_python is older than 3.11." "Use Debian 12 or later, or the virtual machine: cd vagrant && vagrant up"

# The lock files are complete and hashed, so pip resolves nothing. Without build isolation ryu's source package is
# built with the pinned setuptools<68 that requirements-build.lock has put into .venv. A plain PATH: ryu's build
# looks for git and stops at a folder that it may not read.
pip_install() {
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        "$venv/bin/python" -m pip install -qq --no-input --progress-bar off --no-build-isolation --no-deps "$@" \
        </dev/null || fail "pip could not install the pinned packages (see above)." \
        "Check the way to the package index, then run this again: bash vagrant/setup.sh" \
        "An index of your own: pip config set global.index-url ADDRESS"
}
finished() {   # finished PART: written only after the part is whole
    local line
    for line in "${wanted[@]}"; do
        if [[ ${line%% *} == "$1" ]]; then printf '%s\n' "$line" >>"$stamp"; fi
    done
}

for part in "${todo[@]}"; do
    case $part in
        base)
            if [[ -e $venv && ! -e $marker && -n $(ls -A -- "$venv") ]]; then
                fail "$venv was not made by this script, so it is not replaced." "Move it away: mv .venv .venv.mine"
            fi
            say "setup: making .venv (one to two minutes)"
            # Renamed first: a removal that is cut short must not leave a half .venv without its marker.
            rm -rf -- "$venv.stale" && { [[ ! -e $venv && ! -L $venv ]] || mv -- "$venv" "$venv.stale"; } &&
                rm -rf -- "$venv.stale" || fail "cannot remove the old .venv." "As root: rm -rf '$venv' '$venv.stale'"
            { mkdir -- "$venv" && : >"$marker"; } || fail "cannot write to $root." "Use a clone that you own."
            "$system_python" -m venv --system-site-packages "$venv" || fail \
                "cannot make the environment." "As root: apt-get install --reinstall python3-venv"
            # --ignore-installed: everything into .venv, also what the system has in the same version.
            pip_install --require-hashes -r requirements-build.lock
            pip_install --require-hashes --ignore-installed -r requirements.lock
            "$venv/bin/python" -W ignore -c "$imports" || fail "the new .venv does not work (see above)." \
                "Run this again; if it stays, please report it with the text above."
            ;;
        project)
            # compat: a plain .pth line to this folder, so that packages added later are found too.
            pip_install --config-settings editable_mode=compat -e "$root"
            # Compiled now, by this user: runs as root through sudo would leave root's files in these folders.
            packages=(*/__init__.py)
            "$venv/bin/python" -m compileall -q -- "${packages[@]%/*}" || true
            ;;
        dev)
            say "setup: adding the test tools"
            pip_install --require-hashes --ignore-installed -r requirements-dev.lock
            ;;
        mooncake)
            say "setup: adding the Mooncake Transfer Engine"
            pip_install --require-hashes --ignore-installed -r requirements-mooncake.lock
            ;;
    esac
    finished "$part"
done
say "setup: done. Try: .venv/bin/zcube --help"
