"""scripts/slurm-pack on a Slurm of one node: an array job packs, a last job seals, and what comes out is what one process
makes. Needs the distribution's slurmctld, slurmd, slurm-client and munge; says so where they are missing."""

import unittest
from pathlib import Path

import slurm
from common import EndToEnd, clean_environment, main, path_from_environment

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "slurm-pack"
PARTS = 3


@unittest.skipIf(slurm.missing_programs(), "no %s on this machine" % ", ".join(slurm.missing_programs()))
class SlurmPack(EndToEnd):
    def setUp(self):
        super().setUp()
        self.whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.data(), self.whole))
        self.out = self.scratch / "a folder" / "packed"  # names with spaces are names
        self.out.parent.mkdir()
        self.logs = self.scratch / "logs"
        self.logs.mkdir()
        environment = clean_environment(self.scratch, {"RESHARD": path_from_environment("DSPACK_RESHARD")})
        self.slurm = slurm.Slurm(self.scratch / "slurm", environment, slots=PARTS)
        self.addCleanup(self.slurm.__exit__)
        self.slurm.__enter__()

    def pack(self, source):
        return self.slurm.run(SCRIPT, PARTS, "--time=10", "--", source, "--by", "expert", "--out", self.out, "--dev",
                              "retries=1", cwd=self.logs)

    def submit(self, source):
        result = self.pack(source)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"parts: job \d+ \(1-3\); then seal: job \d+\n$")

    def all_logs(self):
        return "\n".join(path.read_text() for path in sorted(self.logs.glob("slurm-*.out")))

    def test_an_array_job_packs_and_the_last_job_seals(self):
        self.submit(self.data())
        self.slurm.wait_for_all()
        self.assertIn(": sealed, 2059 tensors", self.all_logs())
        for number in range(1, PARTS + 1):
            self.assertIn("part %d/%d is done" % (number, PARTS), self.all_logs())
        self.assert_same_tree(self.out, self.whole)
        # Again: everything is there, and every job says so.
        self.submit(self.data())
        self.slurm.wait_for_all()
        self.assertEqual(self.all_logs().count("complete already"), PARTS)
        self.assertIn("is a packed repository already", self.all_logs())
        self.assert_same_tree(self.out, self.whole)

    def test_tasks_that_fail_or_are_cancelled_go_on_when_the_command_is_given_again(self):
        server = self.serve(self.data())
        last = sorted(path.name for path in self.data().glob("*.safetensors"))[-1]
        refused = server.add_fault(last, "403", min_bytes=1_000_000)  # its data, not its header
        self.submit(server.url)
        self.slurm.wait_for_all()
        self.assert_absent(self.out / "manifest.json")  # the seal was not begun
        self.assertIn("403", self.all_logs())
        self.assertEqual(refused.struck, 1)
        server.clear_faults()

        server.rate = 200_000
        self.submit(server.url)
        self.slurm.wait("running tasks", lambda: "RUNNING" in self.slurm.jobs().values())
        cancelled = self.slurm.run("scancel", *{job.split("_")[0] for job in self.slurm.jobs()})
        self.assertEqual(cancelled.returncode, 0, cancelled.stderr)
        self.slurm.wait_for_all()
        self.assert_absent(self.out / "manifest.json")
        server.rate = None

        self.submit(server.url)
        self.slurm.wait_for_all()
        self.assert_same_tree(self.out, self.whole)

    def test_what_would_fail_in_every_task_is_said_before_anything_is_queued(self):
        result = self.pack(self.scratch / "nothing here")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("nothing here", result.stderr)
        for arguments in (["x"], ["2"], ["2", "--"], ["2", "--", "--by", "expert"],
                          ["2", "--", "--out", "x", "--part", "1/2"]):
            result = self.slurm.run(SCRIPT, *arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn("slurm-pack --help", result.stderr)
        self.assertIn("scripts/slurm-pack 8", self.slurm.run(SCRIPT, "--help").stdout)
        self.assertEqual(self.slurm.jobs(), {})


if __name__ == "__main__":
    main()
