"""The system calls that programs in containers may make, whatever the daemon's version allows by itself.

All that ordinary programs need is named, and everything else is refused: namespaces, mounts, keys, BPF, io_uring, modules, clocks, and what
is root's. A call that is new in the kernel is refused until it is named here.
"""

import json
from typing import Any, Final

ALLOWED_CALLS: Final = """
_llseek _newselect accept accept4 access adjtimex alarm arch_prctl bind brk cacheflush cachestat capget capset chdir chmod chown chown32
clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64
close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait
eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod
fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64
fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake futimesat
get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups
getgroups32 getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32
getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getuid32 getxattr inotify_add_watch inotify_init
inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit ioctl ioprio_get
ioprio_set ipc kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32 lgetxattr link linkat listen
listxattr llistxattr lremovexattr lseek lsetxattr lstat lstat64 madvise membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod
mknodat mlock mlock2 mlockall mmap mmap2 mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend
mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep
newfstatat nice open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll
ppoll_time64 prctl pread64 preadv preadv2 prlimit64 process_mrelease process_vm_readv process_vm_writev pselect6 pselect6_time64 ptrace
pwrite64 pwritev pwritev2 read readahead readdir readlink readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg
remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask
rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget
semop semtimedop semtimedop_time64 send sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address
set_tls setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid setregid32
setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid setuid32 setxattr shmat shmctl shmdt
shmget shutdown sigaction sigaltstack signal signalfd signalfd4 sigpending sigprocmask sigreturn sigsuspend socketcall socketpair splice
stat stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range sync_file_range2 syncfs sysinfo tee tgkill time timer_create
timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime
timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64 ugetrlimit umask uname unlink unlinkat utime
utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid waitpid write writev
"""
PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Plain Linux, its 32-bit and old-release variants, and the question which one it is."""
NAMESPACE_FLAGS: Final = 0x7E020000
"""The flags of `clone` that make namespaces."""
VSOCK: Final = 40
"""The family of sockets that lead from a virtual machine to its host."""
NOT_PERMITTED: Final = 1
NO_SUCH_CALL: Final = 38
"""Programs that are told that there is no `clone3`, whose flags a filter cannot read, use `clone`."""
ARCHITECTURES: Final = {
    "SCMP_ARCH_X86_64": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"],
    "SCMP_ARCH_AARCH64": ["SCMP_ARCH_ARM"],
}


def profile() -> str:
    """Return the profile as the daemon takes it."""
    calls = [
        _allow(*ALLOWED_CALLS.split(), "arch_prctl"),
        *(_allow("personality", argument=_argument(value, "SCMP_CMP_EQ")) for value in PERSONALITIES),
        _allow("socket", argument=_argument(VSOCK, "SCMP_CMP_NE")),
        _allow("clone", argument=_argument(NAMESPACE_FLAGS, "SCMP_CMP_MASKED_EQ")),
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": NO_SUCH_CALL},
    ]
    machines = [{"architecture": machine, "subArchitectures": below} for machine, below in ARCHITECTURES.items()]
    return json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": NOT_PERMITTED, "archMap": machines, "syscalls": calls})


def _allow(*names: str, argument: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"names": sorted(set(names)), "action": "SCMP_ACT_ALLOW", "args": [] if argument is None else [argument]}


def _argument(value: int, operation: str) -> dict[str, Any]:
    """Return the condition on a call's first argument. With MASKED_EQ, none of the bits is set."""
    return {"index": 0, "value": value, "valueTwo": 0, "op": operation}
