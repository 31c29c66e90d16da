"""deploy/kubernetes: the manifests are valid, fit each other, the Dockerfile and our own command line, and run.

No cluster runs here. So each manifest is held against the schemas of Kubernetes' own API (strict: an unknown key is a
fault), its commands are parsed by the real commands, its names and ports are compared with each other, and the programs
are started on hosts of their own (hosts.py) under the names and ports that the Services have.
"""

from __future__ import annotations

import copy
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hosts
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from conftest import Needs
from hosts import Host, Hosts

from infersiege.cli import COMMANDS, infersiege
from infersiege.plan.load import load_plan
from infersiege.records import Outcome
from infersiege.rundir import RunDirectory
from infersiege.swarm.secret import SECRET_VARIABLE

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "kubernetes"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
BESIDE = {"kustomization.yaml", "reader.yaml"}
"""Not applied with the others: the list itself, and a pod for afterwards."""
OLDEST, NEWEST = "1.29", ".".join(kubernetes_validate.latest_version().split(".")[:2])
"""Where the label of a pod's index in its Job is set by default, and the newest that is known here."""

Manifest = dict[str, Any]


def documents(file: str) -> list[Manifest]:
    return list(yaml.safe_load_all((FOLDER / file).read_text(encoding="utf-8")))


ALL = {(one["kind"], one["metadata"]["name"]): one for path in FOLDER.glob("*.yaml") for one in documents(path.name)
       if path.name != "kustomization.yaml"}  # fmt: skip
PODS = {key: one["spec"]["template"] for key, one in ALL.items() if one["kind"] in ("Job", "Deployment")}
PODS |= {key: one for key, one in ALL.items() if one["kind"] == "Pod"}
MASTER, WORKER, EMULATOR = ("Job", "infersiege-master"), ("Job", "infersiege-worker"), ("Deployment", "emulator")


def container(key: tuple[str, str]) -> dict[str, Any]:
    (only,) = PODS[key]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def option(key: tuple[str, str], name: str) -> str:
    words: list[str] = container(key)["args"]
    return words[words.index(name) + 1]


# ------------------------------------------------------------------------------------------------------ the manifests


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("key", sorted(ALL), ids="/".join)
def test_each_manifest_fits_the_schema_of_its_kind(key: tuple[str, str], version: str) -> None:
    assert kubernetes_validate.validate(ALL[key], version, strict=True) == version


def misspelt(manifest: Manifest) -> None:
    manifest["spec"]["paralelism"] = manifest["spec"].pop("parallelism")


def text_for_number(manifest: Manifest) -> None:
    manifest["spec"]["completions"] = "4"


def port_without_number(manifest: Manifest) -> None:
    del container_of(manifest)["ports"][0]["containerPort"]


def number_for_text(manifest: Manifest) -> None:
    container_of(manifest)["args"].append(4)


def container_of(manifest: Manifest) -> dict[str, Any]:
    found: dict[str, Any] = manifest["spec"]["template"]["spec"]["containers"][0]
    return found


BREAK = [(WORKER, misspelt), (WORKER, text_for_number), (MASTER, port_without_number), (MASTER, number_for_text)]


@pytest.mark.parametrize(("key", "spoil"), BREAK)
def test_the_schema_finds_what_is_wrong(key: tuple[str, str], spoil: Callable[[Manifest], None]) -> None:
    broken = copy.deepcopy(ALL[key])
    spoil(broken)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, NEWEST, strict=True)


def test_the_kustomization_lists_every_file() -> None:
    assert KUSTOMIZATION["kind"] == "Kustomization"
    assert sorted(KUSTOMIZATION["resources"]) == sorted({path.name for path in FOLDER.glob("*.yaml")} - BESIDE)
    (plan,) = KUSTOMIZATION["configMapGenerator"]
    assert [file for file in plan["files"] if not (FOLDER / file).is_file()] == []
    assert ("Namespace", KUSTOMIZATION["namespace"]) in ALL
    known = {"apiVersion", "kind", "namespace", "labels", "resources", "images"}
    assert KUSTOMIZATION.keys() - known == {"generatorOptions", "configMapGenerator", "secretGenerator"}


def test_no_secret_is_in_the_repository() -> None:
    (secret,) = KUSTOMIZATION["secretGenerator"]
    assert secret.keys() == {"name", "envs"}
    listed = subprocess.run(["git", "ls-files", "."], cwd=FOLDER, capture_output=True, text=True, check=False).stdout
    assert "secret.env" not in listed
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "deploy/kubernetes/secret.env" in ignored
    assert not [key for key in ALL if key[0] == "Secret"]


def test_images_are_those_of_the_compose_file() -> None:
    (image,) = KUSTOMIZATION["images"]
    assert f"{image['newName']}:{image['newTag']}" == COMPOSE["services"]["master"]["image"]
    for key in PODS:
        wanted = image["name"] if key != ("Pod", "infersiege-reader") else COMPOSE["services"]["master"]["image"]
        assert container(key)["image"] == wanted, key


@pytest.mark.parametrize("key", sorted(PODS), ids="/".join)
def test_each_pod_can_do_little(key: tuple[str, str]) -> None:
    """What the namespace enforces (pod security `restricted`), and what it does not: a read-only root, no token."""
    namespace = ALL["Namespace", "infersiege"]["metadata"]["labels"]
    assert namespace["pod-security.kubernetes.io/enforce"] == "restricted"
    spec, only = PODS[key]["spec"], container(key)
    user = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)[-1]
    security = spec["securityContext"]
    assert (str(security["runAsUser"]), str(security["runAsGroup"])) == user
    assert security["runAsNonRoot"] is True and security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert {next(iter(volume.keys() - {"name"})) for volume in spec["volumes"]} <= {
        "configMap",
        "emptyDir",
        "persistentVolumeClaim",
    }


@pytest.mark.parametrize("key", sorted(PODS), ids="/".join)
def test_each_volume_is_there_and_what_is_written_to_is_one(key: tuple[str, str]) -> None:
    volumes = {volume["name"]: volume for volume in PODS[key]["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container(key)["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == volumes.keys()
    for volume in volumes.values():
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        assert claim is None or ("PersistentVolumeClaim", claim) in ALL
        assert volume.get("configMap", {}).get("name", "infersiege-plan") == "infersiege-plan"
    writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "INFERSIEGE_SPOOL=/spool" in dockerfile and "/data/runs" in dockerfile
    wanted = {MASTER: {"/data/runs", "/spool", "/tmp"}, WORKER: {"/spool", "/tmp"}, EMULATOR: {"/tmp"}}
    assert writable == wanted.get(key, set())


@pytest.mark.parametrize("key", sorted(PODS), ids="/".join)
def test_each_pod_says_what_it_needs(key: tuple[str, str]) -> None:
    resources = container(key)["resources"]
    assert resources["requests"].keys() == {"cpu", "memory"}
    assert resources["limits"].keys() == {"memory"}, "a limit of CPU stops a process in the middle of its measuring"
    if key in (WORKER, MASTER):
        assert resources["requests"]["cpu"] == "1", "one core per worker"


def test_jobs_end_as_a_run_ends() -> None:
    master, worker = ALL[MASTER]["spec"], ALL[WORKER]["spec"]
    assert master["backoffLimit"] == 0 and master["template"]["spec"]["restartPolicy"] == "Never"
    assert worker["template"]["spec"]["restartPolicy"] == "OnFailure"
    plan = load_plan(FOLDER / "plan.toml", (), {})
    patience_s = master["template"]["spec"]["terminationGracePeriodSeconds"]
    assert patience_s > plan.load.drain_ns / 1e9 + 30, "the drain, the last records, the report"
    assert worker["template"]["spec"]["terminationGracePeriodSeconds"] >= 10
    assert plan.run.wait_for_workers_ns >= 300e9, "pods are placed and images pulled"


# ------------------------------------------------------------------------------------------ what they say of each other


@pytest.mark.parametrize("key", [MASTER, WORKER, EMULATOR], ids="/".join)
def test_each_command_exists_with_its_options(key: tuple[str, str]) -> None:
    assert "command" not in container(key), "the image's entry point is infersiege"
    name, *arguments = container(key)["args"]
    assert name in COMMANDS
    with infersiege.make_context("infersiege", [name, *arguments], resilient_parsing=False) as context:
        called = infersiege.get_command(context, name)
        assert called is not None
        called.make_context(name, arguments, parent=context)  # parses, and calls nothing


def test_as_many_workers_are_expected_as_there_are() -> None:
    spec = ALL[WORKER]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert option(MASTER, "--workers") == "0"
    assert int(option(MASTER, "--expect-workers")) == spec["completions"] == spec["parallelism"]


def test_each_worker_has_a_name_of_its_own_and_keeps_it() -> None:
    assert option(WORKER, "--name") == "worker-$(WORKER_INDEX)"
    (variable,) = container(WORKER)["env"]
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    assert (variable["name"], path) == (
        "WORKER_INDEX",
        "metadata.labels['batch.kubernetes.io/job-completion-index']",
    )


def test_both_sides_have_the_secret_and_the_emulator_has_not() -> None:
    (secret,) = KUSTOMIZATION["secretGenerator"]
    for key in (MASTER, WORKER):
        assert container(key)["envFrom"] == [{"secretRef": {"name": secret["name"]}}]
    assert "envFrom" not in container(EMULATOR)
    assert SECRET_VARIABLE in (FOLDER / "kustomization.yaml").read_text(encoding="utf-8")


SERVICES = {key[1]: one["spec"] for key, one in ALL.items() if key[0] == "Service"}


def pods_of(selector: dict[str, str]) -> Iterator[tuple[str, str]]:
    for key, pod in PODS.items():
        if selector.items() <= pod["metadata"]["labels"].items():
            yield key


@pytest.mark.parametrize(("service", "pod"), [("infersiege-master", MASTER), ("emulator", EMULATOR)])
def test_a_service_leads_to_one_pod_and_its_port(service: str, pod: tuple[str, str]) -> None:
    spec = SERVICES[service]
    assert list(pods_of(spec["selector"])) == [pod]
    (port,) = spec["ports"]
    ports = {one["name"]: one["containerPort"] for one in container(pod)["ports"]}
    assert ports[port["targetPort"]] == port["port"]
    assert spec.get("clusterIP") != "None", "a name without an address would end the worker that waits for its master"


def test_addresses_are_those_of_the_services() -> None:
    (port,) = SERVICES["infersiege-master"]["ports"]
    assert option(WORKER, "--master") == f"infersiege-master:{port['port']}"
    assert option(MASTER, "--bind") == f"0.0.0.0:{port['port']}"
    plan = load_plan(FOLDER / "plan.toml", (), {})
    (channel,) = plan.channels.values()
    assert option(EMULATOR, "--host") == "0.0.0.0"
    (served,) = SERVICES["emulator"]["ports"]
    assert channel.base_url == f"http://emulator:{served['port']}/v1"
    assert option(EMULATOR, "--port") == str(served["port"])
    (name,) = (one["name"] for one in KUSTOMIZATION["configMapGenerator"])
    (mount,) = (one for one in container(MASTER)["volumeMounts"] if one["name"] == "plan")
    assert container(MASTER)["args"][1] == f"{mount['mountPath']}/plan.toml" and name == "infersiege-plan"


def test_only_workers_reach_the_masters_port() -> None:
    policy = ALL["NetworkPolicy", "infersiege-master"]["spec"]
    assert list(pods_of(policy["podSelector"]["matchLabels"])) == [MASTER]
    (rule,) = policy["ingress"]
    (source,) = rule["from"]
    assert list(pods_of(source["podSelector"]["matchLabels"])) == [WORKER]
    assert [one["port"] for one in rule["ports"]] == [SERVICES["infersiege-master"]["ports"][0]["port"]]


def test_a_selector_of_a_deployment_is_its_pods() -> None:
    spec = ALL[EMULATOR]["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


# ----------------------------------------------------------------------------------------------------------- as it runs


def words_on(key: tuple[str, str], host: Host, index: int | None = None) -> list[str]:
    """A container's command line, in the place of `infersiege`'s image: its variables and paths put in."""
    words = [word.replace("$(WORKER_INDEX)", str(index)) for word in container(key)["args"]]
    return ["infersiege", *(word.replace("/plans/", f"{host.here}/") for word in words)]


@pytest.mark.slow
@pytest.mark.alone
def test_its_programs_find_each_other_by_the_names_of_the_services(needs: Needs, tmp_path: Path) -> None:
    """A host for each pod; a hosts file stands in for the cluster's name server."""
    needs(hosts.missing())
    count = ALL[WORKER]["spec"]["completions"]
    workers = [f"pod-{index}" for index in range(count)]
    environ = {SECRET_VARIABLE: "of-this-test-only"}
    with Hosts(tmp_path / "hosts", ["master", "emulator", *workers]) as pods:
        names = f"127.0.0.1 localhost\n{pods['master'].address('control')} infersiege-master\n"
        names += f"{pods['emulator'].address('load')} emulator\n"
        for name in ("master", "emulator", *workers):
            pods[name].cover("/etc/hosts", names)
        text = (FOLDER / "plan.toml").read_text(encoding="utf-8")
        for long, short in (('duration = "1m"', 'duration = "3s"'), ('warmup = "10s"', 'warmup = "1s"')):
            assert long in text
            text = text.replace(long, short)
        master = pods["master"]
        (master.disk / "plan.toml").write_text(text, encoding="utf-8")
        # Workers first: a cluster starts pods in any order.
        joined = [pods[name].start(*words_on(WORKER, pods[name], index), environ=environ)
                  for index, name in enumerate(workers)]  # fmt: skip
        pods["emulator"].start(*words_on(EMULATOR, pods["emulator"]))
        run = master.start(*words_on(MASTER, master), "--out", "run", environ=environ)
        code, out = run.wait(90), run.output()
        assert code in (0, 3), out  # 3: this machine was too busy for its own client
        assert [process.wait(20) for process in joined] == [0] * count, [process.output() for process in joined]
        turns = list(RunDirectory.open(master.disk / "run").read_turns())
    assert {turn.worker for turn in turns} == {f"worker-{index}" for index in range(count)}, out
    assert all(turn.outcome is Outcome.OK for turn in turns), out
