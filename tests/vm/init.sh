#!/bin/bash
# Process 1 of the VM that tests/vm/boot.sh starts: brings the testbed up to date and runs the command, both of which
# boot.sh left in the shared folder, and switches the machine off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -o remount,rw /
mount -t proc proc /proc 2>/dev/null
mount -t sysfs sysfs /sys 2>/dev/null
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null
ip link set lo up
for module in 9p 9pnet_virtio openvswitch sch_tbf sch_red sch_netem tcp_dctcp tcp_bbr veth; do modprobe -q "$module"; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 out /mnt/out
tar -xf /mnt/out/clone.tar -C /root/zcube
cd /root/zcube && bash /mnt/out/command.sh >/mnt/out/output.txt 2>&1
echo $? >/mnt/out/exit_code
sync
echo o >/proc/sysrq-trigger
sleep 60
