"""Launch scripts: clean shell, a manifest that Kubernetes accepts, flags that the main job
knows."""

import os
import runpy
import signal
import subprocess
import sys
import time
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


@pytest.mark.parametrize(
    "flags, array, expected",
    [
        ("embed --out=e", ("2", "8"), "-m lvcg_jax embed --out=e --part=2/8"),
        ("build --out=d", ("1", "32"), "-m lvcg_jax build --out=d --shard=1/32"),
        ("build --out=d", None, "-m lvcg_jax build --out=d"),
    ],
)
def test_a_job_of_an_array_is_given_its_share(flags, array, expected):
    environment = {"PATH": os.environ["PATH"], "PYTHON": "echo"}
    if array:
        names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT")
        environment |= dict(zip(names, array, strict=True))
    script = ["bash", LAUNCH / "array_job.sh", *flags.split()]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_scripts_say_where_they_were_run():
    for script in (
        LAUNCH / name
        for name in (
            "local_multihost.sh",
            "array_job.sh",
            "slurm.sbatch",
            "tpu_pod.sh",
            "jobset.yaml",
            "jobset_tpu.yaml",
            "Dockerfile",
        )
    ):
        assert "# Status: " in script.read_text(), script.name


def container_of(name: str) -> tuple[dict, dict, dict]:
    """The JobSet of a file, the spec of its job, which Kubernetes accepts, and its container."""
    jobset = yaml.safe_load((LAUNCH / name).read_text())
    (workers,) = jobset["spec"]["replicatedJobs"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "check"},
        **workers["template"],
    }
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    spec = job["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    return jobset, spec, container


def test_jobset_template_is_a_valid_job_whose_processes_agree():
    jobset, spec, container = container_of("jobset.yaml")
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in container["args"])
    assert int(flags["processes"]) == spec["parallelism"] == spec["completions"]
    subdomain = jobset["spec"]["network"]["subdomain"]
    # set-job-replica-index
    (workers,) = jobset["spec"]["replicatedJobs"]
    host = f"{jobset['metadata']['name']}-{workers['name']}-0-0.{subdomain}"
    assert flags["coordinator"].split(":")[0] == host


def test_the_tpu_jobset_has_a_pod_for_every_host_of_its_slice():
    _, spec, container = container_of("jobset_tpu.yaml")
    nodes = spec["template"]["spec"]["nodeSelector"]
    across, down = nodes["cloud.google.com/gke-tpu-topology"].split("x")
    hosts = int(across) * int(down) // container["resources"]["limits"]["google.com/tpu"]
    assert hosts == spec["parallelism"] == spec["completions"]
    assert "--cluster" in container["args"]


def test_the_container_recipe_passes_hadolint():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, LAUNCH / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def write_programs(folder: Path, programs: dict[str, str]) -> None:
    """Stand-ins for programs that are not here: shell scripts of these names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)


def start_slurm_job(folder: Path, srun: str) -> subprocess.Popen:
    """The batch script as Slurm would start it, on a node with eight GPUs."""
    write_programs(folder / "bin", {"srun": srun, "scontrol": f'echo "$@" > {folder / "scontrol"}'})
    path = f"{folder / 'bin'}:/usr/bin:/bin"
    given = {"SLURM_SUBMIT_DIR": folder, "SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_ID": "7"}
    return subprocess.Popen(
        ["bash", LAUNCH / "slurm.sbatch", "--workdir=here"], env={"PATH": path, **given}
    )


def test_a_slurm_job_uses_all_gpus_and_queues_again_after_the_signal(tmp_path):
    assert "#SBATCH --signal=B:TERM@" in (LAUNCH / "slurm.sbatch").read_text()  # to the shell
    told = tmp_path / "told"
    saving = f"""trap 'sleep 0.3; echo saved >> {told}; exit 0' TERM
echo "$JAX_LOCAL_DEVICE_IDS $JAX_PLATFORMS" "$@" > {told}.new; mv {told}.new {told}
for _ in $(seq 300); do sleep 0.1; done"""
    job = start_slurm_job(tmp_path, saving)
    while not told.exists():
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=30) == 0
    started, saved = told.read_text().splitlines()
    assert started.startswith("0,1,2,3,4,5,6,7 cuda ") and started.endswith(" --workdir=here")
    assert " --cluster " in started and ":accelerator" in started
    assert saved == "saved"
    assert (tmp_path / "scontrol").read_text() == "requeue 7\n"


def test_a_slurm_job_that_fails_is_not_queued_again(tmp_path):
    assert start_slurm_job(tmp_path, "exit 3").wait(timeout=30) == 3
    assert not (tmp_path / "scontrol").exists()


# the home of a TPU host whose only Python is 3.10; uv, once installed, brings a newer one, which
# makes an environment whose interpreter writes down what it is asked to run
HOST_PYTHON = """case "$*" in
  *pip*uv*) mkdir -p ~/.local/bin && cp ~/uv ~/.local/bin/ ;;
  --version) echo Python 3.10.12 ;;
  *) exit 1 ;;
esac"""
HOST_UV = 'case "$*" in *find*) echo ~/new/python ;; esac'
NEW_PYTHON = """case "$*" in
  *venv*) mkdir -p .venv/bin && cp ~/new/inside .venv/bin/python ;;
esac"""
INSIDE = """case "$*" in
  *lvcg_jax.train*) echo $$ > ~/pid; echo "$JAX_PLATFORMS" "$@" > ~/trained ;;
esac"""
GCLOUD = """for word in "$@"; do
  case "$word" in
    --command=*) cd "$HOME" && exec bash -c "${word#--command=}" ;;
    *.tar.gz) [ -f "$word" ] && cp "$word" ~/lvcg_jax.tar.gz ;;
  esac
done
true"""


def test_a_tpu_pod_gets_its_python_and_runs_on_without_the_shell(tmp_path):
    home, tools = tmp_path / "home", tmp_path / "bin"
    # `git archive --format=tar.gz --output=FILE HEAD`
    pack = f'tar -czf "${{3#--output=}}" -C {ROOT} launch pyproject.toml'
    old = {f"python3{suffix}": HOST_PYTHON for suffix in ("", ".11", ".12", ".13")}
    write_programs(tools, {"gcloud": GCLOUD, "git": pack, **old})
    write_programs(home, {"uv": HOST_UV})
    write_programs(home / "new", {"python": NEW_PYTHON, "inside": INSIDE})
    path = f"{tools}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", LAUNCH / "tpu_pod.sh", "--workdir=gs://b/r", "--config.data.dir=/a b"],
        env={"PATH": path, "HOME": str(home), "TPU": "pod", "ZONE": "zone"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    words = (home / "trained").read_text().strip()
    assert words.startswith("tpu -m lvcg_jax.train --cluster") and ":accelerator" in words
    assert words.endswith("--workdir=gs://b/r --config.data.dir=/a b")
    # the program's own number, so that the printed way to stop it reaches it
    assert (home / "lvcg_jax" / "train.pid").read_text() == (home / "pid").read_text()
    assert "kill -TERM" in done.stdout


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
    written, drawn = (
        [text.text for text in of.iter(f"{SVG}text")]
        for of in (committed, ElementTree.parse(picture))
    )
    assert written == drawn, "docs/figures/readme.svg is of other weights"
