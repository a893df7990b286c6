#!/usr/bin/env bash
# Makes a disk image of Debian with its full kernel and the testbed, to boot with tests/vm/boot.sh.
# Packages come from this machine's ordinary apt configuration. As root; about 3 GB in FOLDER, five to ten minutes.
# Exit codes: 0 good, 1 failed, 2 wrong usage, 3 the machine lacks something.
set -euo pipefail

(($# == 1)) || { echo "usage: bash tests/vm/build_image.sh FOLDER" >&2; exit 2; }
((EUID == 0)) || { echo "build_image: needs root" >&2; exit 3; }
for tool in debootstrap mkfs.ext4 git; do
    type -P "$tool" >/dev/null || { echo "build_image: $tool is missing: apt-get install debootstrap e2fsprogs git" >&2; exit 3; }
done
clone=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
mkdir -p -- "$1"
folder=$(cd "$1" && pwd -P)
tree=$folder/tree
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(RELEASE) $(SITE)' | awk -v r="$release" '$1 == r {print $2; exit}')

packages=$(sed -n '/^debian_packages=(/,/^)/s/^ *\([a-z0-9.+-]\+\) .*/\1/p' "$clone/vagrant/setup.sh" | paste -sd,)
echo "build_image: debootstrap $release"
rm -rf -- "$tree"
debootstrap --variant=minbase --include="linux-image-amd64,initramfs-tools,kmod,udev,procps,ca-certificates,$packages" \
    "$release" "$tree" "$mirror" >"$folder/debootstrap.log" 2>&1 || { tail -n 20 "$folder/debootstrap.log" >&2; exit 1; }

echo "build_image: the testbed, by vagrant/setup.sh"
mkdir -p -- "$tree/root/zcube"
git -C "$clone" ls-files -z --cached --others --exclude-standard | (cd "$clone" && xargs -0 ls -d 2>/dev/null | tar -cf - -T -) |
    tar -xf - -C "$tree/root/zcube"
cp -L /etc/resolv.conf "$tree/etc/resolv.conf"
for own in /etc/pip.conf /root/.config/pip/pip.conf /etc/ssl/certs/ca-certificates.crt; do  # an index of your own
    if [[ -f $own ]]; then install -D -m 644 "$own" "$tree$own"; fi
done
unshare --mount --pid --fork bash -euc '
    mount --make-rprivate /
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    chroot "$1" bash /root/zcube/vagrant/setup.sh --dev' - "$tree"

install -m 755 "$clone/tests/vm/init.sh" "$tree/sbin/vm-init"
echo testbed >"$tree/etc/hostname"
echo "127.0.0.1 localhost testbed" >"$tree/etc/hosts"
mkdir -p -- "$tree/mnt/out"
cp -L "$tree"/boot/vmlinuz-* "$folder/vmlinuz"
cp -L "$tree"/boot/initrd.img-* "$folder/initrd.img"
echo "build_image: $folder/disk.img"
rm -f -- "$folder/disk.img"
truncate -s 4G "$folder/disk.img"
mkfs.ext4 -q -d "$tree" "$folder/disk.img"
rm -rf -- "$tree"
