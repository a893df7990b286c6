#!/usr/bin/env bash
# Boots the image of tests/vm/build_image.sh without KVM, runs one command in it, and prints what the command printed.
# This clone's files are copied over those in the image first, so that changes need no new image; the command's folder
# is the testbed, and what it leaves in /mnt/out is in FOLDER/out afterwards. The disk itself is not changed.
# Emulated processors are slow: this is for what a run does, never for how fast.
# usage: bash tests/vm/boot.sh FOLDER COMMAND...      exits with the command's exit code, 1 when the VM did not end
set -euo pipefail

(($# >= 2)) || { echo "usage: bash tests/vm/boot.sh FOLDER COMMAND..." >&2; exit 2; }
type -P qemu-system-x86_64 >/dev/null || { echo "boot: qemu is missing: apt-get install qemu-system-x86" >&2; exit 3; }
clone=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
folder=$(cd "$1" && pwd -P)
shift
mkdir -p -- "$folder/out"
rm -f -- "$folder/out/exit_code" "$folder/out/output.txt"
printf '%s\n' "$*" >"$folder/out/command.sh"
(cd "$clone" && git ls-files -z --cached --others --exclude-standard | xargs -0 ls -d 2>/dev/null | tar -cf - -T -) >"$folder/out/clone.tar"
nice -n 19 timeout "${VM_TIMEOUT_S:-1500}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 2G \
    -nographic -no-reboot -monitor none -serial "file:$folder/console.log" -nic none -snapshot \
    -drive "file=$folder/disk.img,format=raw,if=virtio" \
    -virtfs "local,path=$folder/out,mount_tag=out,security_model=none" \
    -kernel "$folder/vmlinuz" -initrd "$folder/initrd.img" \
    -append "root=/dev/vda rw console=ttyS0 init=/sbin/vm-init quiet panic=-1 mitigations=off" </dev/null || true
[[ -f $folder/out/exit_code ]] || { echo "boot: the VM did not end by itself; see $folder/console.log" >&2; exit 1; }
cat -- "$folder/out/output.txt"
exit "$(cat -- "$folder/out/exit_code")"
