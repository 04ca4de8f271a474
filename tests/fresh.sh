#!/bin/bash
# fresh.sh - proves that a bare Debian 12 can do what README says (for people with root; not part of make test).
#
#   sudo tests/fresh.sh [COMMAND...]     COMMAND: what to run there after the set-up; README's test command if none
#
# debootstrap makes a Debian 12 with nothing added in a temporary folder (from the mirror in this machine's apt
# settings; $MIRROR names another), the committed state of this repository is cloned into it, and README's set-up and
# test blocks run there in order.  Nothing else of this machine is visible inside, the shared material included.
# FRESH_FOLDER keeps the folder for the next call.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

fail() { echo "fresh: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "needs root (debootstrap and chroot): sudo tests/fresh.sh"
command -v debootstrap >/dev/null || fail "needs debootstrap: apt-get install debootstrap"

# The mirror of this machine's own apt settings.
mirror_of_apt() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -n 1 || true; }

mirror=${MIRROR:-$(mirror_of_apt)}
[ -n "$mirror" ] || fail "apt's settings name no mirror; set MIRROR"
folder=${FRESH_FOLDER:-$(mktemp -d)}

clean_up() {
    local kind
    for kind in proc sys; do # debootstrap may have mounted them, too
        while mountpoint -q "$folder/$kind"; do umount "$folder/$kind" || umount -l "$folder/$kind"; done
    done
    [ -n "${FRESH_FOLDER:-}" ] || rm -rf --one-file-system "$folder"
}
trap clean_up EXIT

inside() { chroot "$folder" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LC_ALL=C.UTF-8 \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} "$@"; }

if [ ! -x "$folder/bin/bash" ]; then
    echo "fresh: debootstrap bookworm into $folder from $mirror"
    debootstrap --variant=minbase --include=ca-certificates bookworm "$folder" "$mirror" >"$folder.log" 2>&1 || {
        tail -n 20 "$folder.log"
        fail "debootstrap failed"
    }
    rm -f "$folder.log"
    # How this machine reaches its mirror (proxy, certificates) is no part of what is proved.
    apt-config dump | grep -E '^Acquire::https?::' >"$folder/etc/apt/apt.conf.d/90mirror" || true
fi
cp -L /etc/resolv.conf /etc/hosts "$folder/etc/"
for kind in proc sys; do
    mountpoint -q "$folder/$kind" || mount -t "$kind" "$kind" "$folder/$kind" || echo "fresh: goes on without /$kind"
done

echo "fresh: clone $(git -C "$root" rev-parse --short HEAD)"
rm -rf "$folder/root/deadwood"
git clone -q --no-hardlinks "$root" "$folder/root/deadwood"

# README's blocks of shell commands, the first two: set-up and test.  sudo is root's own command here.
block() {
    awk -v n="$1" '/^```sh/ { k++; inside = k == n; next } /^```/ { inside = 0 } inside' "$root/README.md" | sed 's/^sudo //'
}

run_there() {
    echo "fresh: $1"
    inside bash -euc "cd /root/deadwood; $1"
}

inside apt-get update -q
SECONDS=0
run_there "export DEBIAN_FRONTEND=noninteractive; $(block 1)"
echo "fresh: set up in $SECONDS s"
SECONDS=0
if [ $# -gt 0 ]; then run_there "$*"; else run_there "$(block 2)"; fi
echo "fresh: passed in $SECONDS s"
