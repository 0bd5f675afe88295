"""A Slurm of one node, from the distribution's packages, for as long as a test runs: a key and a munged of its own, one
controller, one node daemon, all below one folder and as the user who runs the tests."""

import getpass
import os
import shutil
import socket
import subprocess
import time

from common import free_port

# Daemons lie where an ordinary user's PATH does not lead.
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")


def missing_programs():
    return [name for name in PROGRAMS if not shutil.which(name, path=PATH)]


CONFIGURATION = """
ClusterName=single
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={slots} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """`slots`: tasks that run at once."""

    def __init__(self, folder, environment, slots=4):
        self.folder = folder
        self.daemons = []
        folder.mkdir()
        folder.chmod(0o755)
        for name in ("spool", "state"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        configuration = folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(
            folder=folder, host=socket.gethostname().split(".")[0], user=getpass.getuser(), slots=slots,
            controller_port=free_port(), node_port=free_port()))
        self.environment = {**environment, "PATH": PATH, "SLURM_CONF": str(configuration)}

    def __enter__(self):
        # --force: the scratch folder is closed to other users, who need nothing here.
        self.start("munged", "--foreground", "--force", "--key-file=%s/munge.key" % self.folder,
                   "--socket=%s/munge.sock" % self.folder, "--pid-file=%s/munged.pid" % self.folder,
                   "--log-file=%s/munged.log" % self.folder, "--seed-file=%s/munge.seed" % self.folder)
        self.wait("munged", lambda: (self.folder / "munge.sock").exists())
        self.start("slurmctld", "-D")
        self.start("slurmd", "-D")
        self.wait("an idle node", lambda: "idle" in self.run("sinfo", "--noheader", "--format=%T").stdout)
        return self

    def __exit__(self, *unused):
        self.run("scancel", "--quiet", "--state=RUNNING")
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def start(self, *command):
        with open(self.folder / (command[0] + ".out"), "wb") as log:
            self.daemons.append(subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                                                 stderr=subprocess.STDOUT))

    def run(self, *command, cwd=None):
        return subprocess.run(list(map(str, command)), env=self.environment, cwd=cwd, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=600)

    def wait(self, what, condition, seconds=600):
        deadline = time.monotonic() + seconds
        while not condition():
            dead = [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]
            if dead or time.monotonic() > deadline:
                logs = {path.name: path.read_text(errors="replace")[-1500:] for path in self.folder.glob("*.out")}
                raise AssertionError("waited in vain for %s; ended: %s; %s" % (what, dead, logs))
            time.sleep(0.1)

    def jobs(self):
        """{"ID" or "ID_TASK": state} of what is queued or running."""
        lines = self.run("squeue", "--noheader", "--array", "--format=%i %T").stdout.split("\n")
        return dict(line.split() for line in lines if line.strip())

    def wait_for_all(self):
        self.wait("the end of all jobs", lambda: not self.jobs())
