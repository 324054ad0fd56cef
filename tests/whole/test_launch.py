"""Launch scripts: clean shell, a manifest that Kubernetes accepts, flags that the main job
knows."""

import runpy
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import kubernetes_validate
import pytest
import yaml
from helpers.commands import ROOT, assert_one_line_error, run, train_arguments

LAUNCH = ROOT / "launch"
SVG = "{http://www.w3.org/2000/svg}"
SCRIPTS = [*sorted(LAUNCH.glob("*.sh")), LAUNCH / "slurm.sbatch", ROOT / ".ci" / "run"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_pass_shellcheck(script):
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run(
        [shellcheck, "--external-sources", f"--source-path={LAUNCH}", script],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_scripts_say_where_they_were_run():
    for script in (
        LAUNCH / name
        for name in ("local_multihost.sh", "slurm.sbatch", "tpu_pod.sh", "jobset.yaml")
    ):
        assert "# Status: " in script.read_text(), script.name


def test_jobset_template_is_a_valid_job_whose_processes_agree():
    jobset = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())
    (workers,) = jobset["spec"]["replicatedJobs"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "check"},
        **workers["template"],
    }
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    spec = job["spec"]
    flags = dict(
        flag.removeprefix("--").split("=", 1)
        for flag in spec["template"]["spec"]["containers"][0]["args"]
    )
    assert int(flags["processes"]) == spec["parallelism"] == spec["completions"]
    subdomain = jobset["spec"]["network"]["subdomain"]
    # set-job-replica-index
    host = f"{jobset['metadata']['name']}-{workers['name']}-0-0.{subdomain}"
    assert flags["coordinator"].split(":")[0] == host


def test_half_named_processes_and_an_absent_cluster_are_told(shards_dir, tmp_path):
    arguments = train_arguments(tmp_path / "run", shards_dir)
    assert_one_line_error(
        run("lvcg_jax.train", *arguments, "--processes=2"), "--coordinator", "--process=K"
    )
    both = run("lvcg_jax.train", *arguments, "--cluster", "--processes=2")
    assert_one_line_error(both, "--cluster", "leave out")
    assert_one_line_error(run("lvcg_jax.train", *arguments, "--cluster"), "no cluster environment")


def test_the_picture_of_the_readme_can_be_drawn_again(tmp_path):
    picture = tmp_path / "readme.svg"
    runpy.run_path(str(LAUNCH / "draw_readme.py"))["main"]([f"--out={picture}"])
    kinds = [path.get("class") for path in ElementTree.parse(picture).iter(f"{SVG}path")]
    assert (kinds.count("derived"), kinds.count("true"), kinds.count("loop")) == (9, 9, 1)
    committed = ElementTree.parse(ROOT / "docs" / "figures" / "readme.svg")
    assert [path.get("class") for path in committed.iter(f"{SVG}path")] == kinds
