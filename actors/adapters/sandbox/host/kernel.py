"""System calls, files in /proc, and the frames between a tool host and the server; see toolhost.py."""

import ctypes
import os
import sys

PROGRAM, PYTHON = b"f", b"p"
KILL, SIGNAL = b"K", b"N"
HOST, INIT, STARTED, FAILED, OUTPUT, END, CLEARED = b"H", b"I", b"S", b"X", b"O", b"E", b"C"

# The numbers of the limits that an END frame can report; 0 means that no limit ended the program.
WALL, PROCESSES, MEMORY, LEASE = 1, 2, 3, 4

# Maximum bytes of the program's output that one read takes; the largest frame is one byte longer.
CHUNK = 1 << 16


PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS = 23, 24, 28, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

CLONE_PARENT = 0x00008000
CLONE_INTO_CGROUP, NR_CLONE3 = 1 << 33, 435
NR_OPEN_TREE = 428
# These system calls, like all that were added after 2019, have the same number on every architecture.
NR_MOUNT_SETATTR, NR_LANDLOCK_CREATE, NR_LANDLOCK_ADD, NR_LANDLOCK_RESTRICT = 442, 444, 445, 446

libc = ctypes.CDLL(None, use_errno=True)
# The C library, for system calls that fork: calls keep the interpreter's lock, so that a forked child holds it, too.
forking_libc = ctypes.PyDLL(None, use_errno=True)


class Opened:
    def __init__(self, file: int) -> None:
        self.file = file

    def __enter__(self) -> int:
        return self.file

    def __exit__(self, *_: object) -> None:
        os.close(self.file)


def contents(path: "str | bytes") -> bytes:
    found = b""
    with Opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as file:
        while data := os.read(file, CHUNK):
            found += data
    return found


def struct_of_words(*words: int) -> bytes:
    return b"".join(word.to_bytes(8, sys.byteorder) for word in words)


def kernel_at_least(*version: int) -> bool:
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit()) >= version


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused by the kernel")
    return result


def write_file(path: str, text: str) -> None:
    with Opened(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as file:
        os.write(file, text.encode())


LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_ABI = 7

TRUNCATION_ABI = 3

SIGNALS_ABI = 6


def close(*files: int) -> None:
    for file in files:
        os.close(file)


def received_files(ancillary: "list[tuple[int, int, bytes]]") -> list[int]:
    return [
        int.from_bytes(data[start : start + 4], sys.byteorder)
        for _, _, data in ancillary
        for start in range(0, len(data), 4)
    ]


X86_64 = {
    "open": 2, "ioctl": 16, "access": 21, "shmget": 29, "shmat": 30, "shmctl": 31, "socket": 41, "connect": 42,
    "accept": 43, "sendto": 44, "bind": 49, "listen": 50, "socketpair": 53, "clone": 56, "kill": 62, "semget": 64,
    "semop": 65, "semctl": 66, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "fcntl": 72, "truncate": 76,
    "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "unlink": 87, "symlink": 88, "chmod": 90,
    "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "ptrace": 101, "syslog": 103, "rt_sigqueueinfo": 129,
    "utime": 132, "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "vhangup": 153,
    "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
    "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
    "init_module": 175, "delete_module": 176, "quotactl": 179, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
    "getxattr": 191, "lgetxattr": 192, "fgetxattr": 193, "listxattr": 194, "llistxattr": 195, "flistxattr": 196,
    "inotify_init": 253, "inotify_init1": 294,
    "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "tkill": 200, "sched_setaffinity": 203,
    "semtimedop": 220, "clock_settime": 227, "tgkill": 234, "utimes": 235, "mq_open": 240, "mq_unlink": 241,
    "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251, "migrate_pages": 256,
    "openat": 257, "mkdirat": 258, "fchownat": 260, "futimesat": 261, "unlinkat": 263, "renameat": 264,
    "symlinkat": 266, "fchmodat": 268, "faccessat": 269, "unshare": 272, "move_pages": 279,
    "utimensat": 280, "accept4": 288, "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "fanotify_init": 300,
    "prlimit64": 302, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "sched_setattr": 314, "renameat2": 316,
    "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
AARCH64 = {
    "getxattr": 8, "lgetxattr": 9, "fgetxattr": 10, "listxattr": 11, "llistxattr": 12, "flistxattr": 13,
    "inotify_init1": 26,
    "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
    "fcntl": 25, "ioctl": 29, "ioprio_set": 30, "mkdirat": 34, "unlinkat": 35,
    "symlinkat": 36, "renameat": 38, "umount2": 39, "mount": 40, "pivot_root": 41, "truncate": 45, "faccessat": 48,
    "chroot": 51, "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "openat": 56, "vhangup": 58,
    "quotactl": 60, "utimensat": 88, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105,
    "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "sched_setparam": 118,
    "sched_setscheduler": 119, "sched_setaffinity": 122, "kill": 129, "tkill": 130, "tgkill": 131,
    "rt_sigqueueinfo": 138, "setpriority": 140, "reboot": 142, "sethostname": 161, "setdomainname": 162,
    "settimeofday": 170, "adjtimex": 171, "mq_open": 180, "mq_unlink": 181, "msgget": 186, "msgctl": 187, "msgrcv": 188,
    "msgsnd": 189, "semget": 190, "semctl": 191, "semtimedop": 192, "semop": 193, "shmget": 194, "shmctl": 195,
    "shmat": 196, "socket": 198, "socketpair": 199, "bind": 200, "listen": 201, "accept": 202, "connect": 203,
    "sendto": 206, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224, "swapoff": 225,
    "migrate_pages": 238, "move_pages": 239, "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "accept4": 242,
    "prlimit64": 261, "fanotify_init": 262, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
    "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "sched_setattr": 274,
    "renameat2": 276, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip
NUMBERS = {"x86_64": X86_64, "aarch64": AARCH64}
EVERYWHERE = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "openat2": 437,
    "pidfd_getfd": 438, "faccessat2": 439, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
    "process_mrelease": 448, "fchmodat2": 452, "setxattrat": 463, "getxattrat": 464, "listxattrat": 465,
    "removexattrat": 466, "open_tree_attr": 467,
    "file_setattr": 469,
}  # fmt: skip
