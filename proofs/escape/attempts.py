"""The attempts."""

from typing import Any, Final

from proofs.escape.attempt import ALL_RIGHTS, Attempt
from proofs.escape.far import METADATA
from tests.support.capabilities import CAP_SYS_RESOURCE, has_capability

from evener.proto.sandbox import Network, NetworkMode, SandboxLimits
from evener.sandboxes.control_groups import find_control_groups

HOST_NETWORK: Final = {"NetworkMode": "host"}
HOST_PROCESSES: Final = {"PidMode": "host"}
PUBLIC: Final = Network(mode=NetworkMode.PUBLIC)
FORBIDDEN_HERE: Final = "it would change this machine"
NO_PROXY: Final = "a plain process has no proxy"


def proxied(name: str, host: str) -> Attempt:
    """Return the attempt to reach this machine by the proxy of a public network."""
    code = f"escaped(b'reached' in through_proxy('http://{host}:%s/' % HOST_PORT))"
    return Attempt(name=name, code=code, network=PUBLIC, private_hosts=("127.0.0.0/8", "::1/128", "0.0.0.0/8"), plain=NO_PROXY)


ATTEMPTS: Final = (
    Attempt(name="host's service by loopback", code="connect('127.0.0.1', HOST_PORT); escaped()", loosened=HOST_NETWORK),
    Attempt(name="host's service by another loopback address", code="connect('127.0.0.5', HOST_PORT); escaped()", loosened=HOST_NETWORK),
    Attempt(name="host's service by its own address", code="connect(HOST_ADDRESS, HOST_PORT); escaped()", loosened=HOST_NETWORK),
    Attempt(name="another session's relay", code="connect('127.0.0.1', OTHER_PORT); escaped()", loosened=HOST_NETWORK),
    Attempt(
        name="host's abstract Unix socket",
        code="s = socket.socket(socket.AF_UNIX); s.connect('\\0' + ABSTRACT); escaped()",
        loosened=HOST_NETWORK,
    ),
    Attempt(name="a datagram to the host", code="datagram('127.0.0.1', UDP_PORT); escaped()", loosened=HOST_NETWORK),
    Attempt(
        name="raw packets",
        code="socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768); escaped()",
        loosened=ALL_RIGHTS,
        as_root=True,
    ),
    proxied("host's loopback by the proxy", "127.0.0.1"),
    proxied("host's loopback by the proxy, as a number", "2130706433"),
    proxied("host's loopback by the proxy, by name", "localhost"),
    proxied("host's loopback by the proxy, as any address", "0.0.0.0"),  # noqa: S104 - it is asked for, not bound
    Attempt(
        name="host's loopback by the proxy, by CONNECT",
        code="escaped(b'200' in proxy_connect('127.0.0.1', HOST_PORT))",
        network=PUBLIC,
        private_hosts=("127.0.0.0/8",),
        plain=NO_PROXY,
    ),
    Attempt(
        name="a host's process in /proc",
        code="escaped(b'sleep' in open('/proc/%s/cmdline' % HOST_PID, 'rb').read())",
        loosened=HOST_PROCESSES,
    ),
    Attempt(
        name="the environment of a host's process",
        code="escaped(b'SECRET' in open('/proc/%s/environ' % HOST_PID, 'rb').read())",
        loosened={**HOST_PROCESSES, **ALL_RIGHTS, "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"]},
        as_root=True,
    ),
    Attempt(
        name="a signal to a host's process",
        code="os.kill(int(HOST_PID), 0); escaped()",
        loosened={**HOST_PROCESSES, **ALL_RIGHTS},
        as_root=True,
    ),
    Attempt(
        name="the files of a host's process by /proc",
        code="escaped('secret' in open('/proc/%s/root%s' % (HOST_PID, SECRET)).read())",
        loosened={**HOST_PROCESSES, **ALL_RIGHTS, "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"]},
        as_root=True,
    ),
    Attempt(name="a host's file", code="escaped('secret' in open(SECRET).read())", loosened={"Binds": ["{folder}:{folder}"]}),
    Attempt(
        name="writing a host's file",
        code="open(SECRET + os.urandom(4).hex(), 'w').write('x'); escaped()",
        loosened={"Binds": ["{folder}:{folder}"]},
    ),
    Attempt(
        name="writing to the bundle",
        code="open(BUNDLE + '/' + os.urandom(4).hex(), 'w').write('x'); escaped()",
        loosened={"Mounts": [{"Type": "bind", "Source": "{bundle}", "Target": "/opt/evener/bundle", "ReadOnly": False}]},
    ),
    Attempt(
        name="mounting the bundle anew",
        code="call('mount', None, BUNDLE.encode(), None, 32 | 4096, None); escaped()",
        loosened={**ALL_RIGHTS, "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"]},
        as_root=True,
        plain=FORBIDDEN_HERE,
    ),
    Attempt(
        name="the daemon's socket",
        code="s = socket.socket(socket.AF_UNIX); s.connect(DOCKER_SOCKET); escaped()",
        loosened={"Binds": ["{docker}:{docker}"], **ALL_RIGHTS},
        as_root=True,
    ),
    Attempt(
        name="mounting a file system",
        code="os.makedirs(TMP + '/m'); m = b'%s/m' % TMP.encode(); call('mount', b'x', m, b'tmpfs', 0, None); call('umount', m); escaped()",
        loosened={**ALL_RIGHTS, "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"]},
        as_root=True,
    ),
    Attempt(
        name="a device of the host",
        code="os.mknod(TMP + '/null', 0o20666, os.makedev(1, 3)); escaped()",
        loosened=ALL_RIGHTS,
        as_root=True,
    ),
    Attempt(name="a user namespace, with all rights in it", code="call('unshare', 0x10000000); escaped()", loosened=ALL_RIGHTS),
    Attempt(
        name="a process in a user namespace",
        code="call('syscall', 56, 0x10000011, 0, 0, 0, 0); escaped()",
        loosened=ALL_RIGHTS,
    ),
    Attempt(name="the keys of the kernel", code="call('syscall', 248, b'user', b'k', b'v', 1, -2); escaped()", loosened=ALL_RIGHTS),
    Attempt(
        name="the log of the kernel",
        code="call('klogctl', 3, ctypes.create_string_buffer(99), 99); escaped()",
        loosened=ALL_RIGHTS,
        as_root=True,
    ),
    Attempt(name="io_uring", code="call('syscall', 425, 4, ctypes.create_string_buffer(120)); escaped()", loosened=ALL_RIGHTS),
    Attempt(name="the name of the machine", code="socket.sethostname(socket.gethostname()); escaped()", loosened=ALL_RIGHTS, as_root=True),
    Attempt(
        name="settings of the kernel",
        code="t = open('/proc/sys/vm/swappiness').read(); open('/proc/sys/vm/swappiness', 'w').write(t); escaped()",
        loosened={"Privileged": True},
        as_root=True,
    ),
    Attempt(
        name="what the kernel runs when a program crashes",
        code="t = open('/proc/sys/kernel/core_pattern').read(); open('/proc/sys/kernel/core_pattern', 'w').write(t); escaped()",
        loosened={"Privileged": True},
        as_root=True,
    ),
    Attempt(
        name="tracing a host's process",
        code="call('ptrace', 0x4206, int(HOST_PID), 0, 0); escaped()",
        loosened={**HOST_PROCESSES, **ALL_RIGHTS, "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"]},
        as_root=True,
    ),
    Attempt(name="going before all others", code="os.nice(-5); escaped()", loosened=ALL_RIGHTS, as_root=True),
    Attempt(name="another root", code="os.chroot(TMP); escaped()", loosened=ALL_RIGHTS, as_root=True),
    Attempt(name="other groups", code="os.setgroups([0, 7]); escaped(7 in os.getgroups())", loosened=ALL_RIGHTS, as_root=True),
    Attempt(name="another user", code="os.setuid(12345); escaped(os.getuid() == 12345)", loosened=ALL_RIGHTS, as_root=True),
    Attempt(
        name="giving files away",
        code="open(TMP + '/f', 'w').close(); os.chown(TMP + '/f', 7, 7); escaped()",
        loosened=ALL_RIGHTS,
        as_root=True,
    ),
    Attempt(
        name="a set-uid program",
        code="escaped(b'NoNewPrivs:\\t0' in open('/proc/self/status', 'rb').read())",
        loosened={"SecurityOpt": []},
    ),
    Attempt(
        name="a set-uid program of root's",
        code="escaped(subprocess.run([BUNDLE + '/id', '-u'], stdout=subprocess.PIPE).stdout == b'0\\n')",
        loosened={"SecurityOpt": []},
    ),
    Attempt(
        name="dying last when memory ends",
        code="open('/proc/self/oom_score_adj', 'w').write('-1000'); escaped()",
        impossible="" if has_capability(CAP_SYS_RESOURCE) else "nobody here has CAP_SYS_RESOURCE, which sets the bound and passes it",
        loosened=ALL_RIGHTS,
        as_root=True,
    ),
    Attempt(
        name="a file above the limit of the disk",
        code="open('big', 'wb').write(bytes(32 << 20)); escaped()",
        limits=SandboxLimits(disk_bytes=8 << 20),
        loosened={"Ulimits": []},
    ),
    Attempt(
        name="the memory of others: no limit",
        code="x = bytearray(300 << 20); escaped()",
        limits=SandboxLimits(memory_bytes=64 << 20),
        loosened={"Memory": 0, "MemorySwap": 0},
    ),
    Attempt(
        name="the memory of others, in many processes",
        code="""
import time
for _ in range(4):
    if os.fork() == 0:
        x = bytearray(60 << 20); time.sleep(3); os._exit(0)
escaped(all(os.waitstatus_to_exitcode(os.wait()[1]) == 0 for _ in range(4)))
""",
        limits=SandboxLimits(memory_bytes=128 << 20),
        loosened={"Memory": 0, "MemorySwap": 0},
        impossible="" if find_control_groups() is not None else "this process may not make control groups",
    ),
    Attempt(
        name="the memory of others, in /dev/shm",
        code="""
try:
    open('/dev/shm/evener-trial', 'wb').write(bytes(200 << 20)); escaped()
finally:
    os.path.exists('/dev/shm/evener-trial') and os.unlink('/dev/shm/evener-trial')
""",
        loosened={"ShmSize": 1 << 30},
    ),
    Attempt(
        name="the disk, by many files",
        code="import time\nfor n in range(30):\n    open('f%d' % n, 'wb').write(bytes(8 << 20)); time.sleep(0.2)\nescaped()",
        limits=SandboxLimits(disk_bytes=32 << 20),
        kinds=("bubblewrap",),
    ),
    Attempt(
        name="the disk, by files that are removed and still open",
        code=(
            "import time\nkept = []\nfor n in range(30):\n    f = open('f', 'wb'); f.write(bytes(8 << 20)); f.flush(); kept.append(f)\n"
            "    os.unlink('f'); time.sleep(0.2)\nescaped()"
        ),
        limits=SandboxLimits(disk_bytes=32 << 20),
        kinds=("bubblewrap",),
    ),
    Attempt(
        name="a fork bomb",
        code="import subprocess as p; a = [p.Popen(['sleep', '60']) for _ in range(150)]; escaped(len(a) == 150)",
        limits=SandboxLimits(pids=60),
        loosened={"PidsLimit": 0},
    ),
)


def from_far(name: str, code: str, **how: Any) -> Attempt:
    """Return an attempt at an address that only a network of the proof's own has. It stands for what is far away."""
    return Attempt(name=name, code=code, **{"loosened": HOST_NETWORK, **how})


FAR_ATTEMPTS: Final = (
    from_far("the internet", "connect(INTERNET, 443); escaped()"),
    from_far("a name server of the internet", "datagram(INTERNET, 53); escaped()"),
    from_far("a name server by TCP", "connect(INTERNET, 53); escaped()"),
    from_far("the metadata address of a cloud", "connect(METADATA, 80); escaped()"),
    from_far(
        "the metadata address by the proxy",
        "escaped(b'reached' in through_proxy('http://%s/' % METADATA))",
        network=PUBLIC,
        private_hosts=(f"{METADATA}/32",),
        plain=NO_PROXY,
    ),
    from_far(
        "the metadata address by the proxy, by CONNECT",
        "escaped(b'200' in proxy_connect(METADATA, 80))",
        network=PUBLIC,
        private_hosts=(f"{METADATA}/32",),
        plain=NO_PROXY,
    ),
)
