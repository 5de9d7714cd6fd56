"""deploy/kubernetes: each folder renders to manifests that a cluster takes, and that we can run.

Core kinds are checked against Kubernetes' own schemas, strictly; other kinds against what stands in
`schemas`. A kind without a schema is a failure. What no schema knows is checked here: quantities,
volumes, labels, and the command lines, by the programs that get them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is not installed"
)

import manifests as m  # noqa: E402

from lightcc.runner import arguments  # noqa: E402
from lightcc.runner.agent import pod, worker  # noqa: E402
from lightcc.runner.hosts import Host  # noqa: E402

pytestmark = pytest.mark.extra
SCHEMAS = Path(__file__).resolve().parent / "schemas"
RELEASES = ("1.28", "1.32")
QUANTITY = re.compile(r"^\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")
DNS_LABEL = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
CORE = {"v1", "apps/v1", "batch/v1"}
CONTAINERFILE = (m.ROOT.parent / "Containerfile").read_text()
COMMAND_OF_THE_IMAGE = json.loads(re.findall(r"^CMD (.*)$", CONTAINERFILE, re.MULTILINE)[-1])

FOLDERS = [pytest.param(path, id=path.name) for path in m.folders()]


def schema_of(manifest: m.Manifest) -> dict[str, Any]:
    group, _, version = manifest["apiVersion"].rpartition("/")
    path = SCHEMAS / f"{manifest['kind']}.{group}.{version}.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def check(manifest: m.Manifest) -> None:
    """Raises where a cluster would refuse the manifest."""
    if manifest["apiVersion"] in CORE:
        for release in RELEASES:
            kubernetes_validate.validate(manifest, release, strict=True)
        return
    jsonschema.validate(manifest, schema_of(manifest))
    for template in m.pod_templates(manifest):
        whole = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
        for release in RELEASES:
            kubernetes_validate.validate(whole, release, strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_cluster_takes_the_manifests(folder: Path) -> None:
    found = m.render(folder)
    assert found
    names = [(it["kind"], it["metadata"].get("namespace"), it["metadata"]["name"]) for it in found]
    assert len(set(names)) == len(names)
    for manifest in found:
        check(manifest)


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("folder", FOLDERS)
def test_kubectl_renders_the_same(folder: Path) -> None:
    version = run("kubectl", "version", "--client").stdout if shutil.which("kubectl") else ""
    if re.search(r"Kustomize Version: v[4-9]", version) is None:
        pytest.skip("there is no kubectl whose kustomize is 4 or newer")
    done = run("kubectl", "kustomize", str(folder))
    assert done.returncode == 0, done.stderr

    def by_name(manifest: m.Manifest) -> tuple[str, str]:
        return manifest["kind"], manifest["metadata"]["name"]

    theirs = sorted(yaml.safe_load_all(done.stdout), key=by_name)
    assert theirs == sorted(m.render(folder), key=by_name)


@pytest.mark.parametrize("folder", FOLDERS)
def test_quantities_volumes_and_labels_fit(folder: Path) -> None:
    for manifest in m.render(folder):
        for template in m.pod_templates(manifest):
            volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
            mounted = set()
            for container in m.containers(template):
                mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
                assert mounts <= volumes, f"{container['name']} mounts what is not there"
                mounted |= mounts
                resources = container["resources"]
                requests, limits = resources.get("requests", {}), resources.get("limits", {})
                for name, value in [*requests.items(), *limits.items()]:
                    assert QUANTITY.match(str(value)), f"{name}: {value!r} is no quantity"
                if any(name.startswith("hugepages-") for name in limits):
                    assert "memory" in limits, "huge pages need memory or cpu beside them"
            assert mounted == volumes, "a volume is not used"
            selector = manifest["spec"].get("selector", {}).get("matchLabels")
            if selector is not None:
                assert selector.items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize("folder", FOLDERS)
def test_services_select_pods_that_are_there(folder: Path) -> None:
    found = m.render(folder)
    pods = [template for it in found for template in m.pod_templates(it)]
    labels = [pod.get("metadata", {}).get("labels", {}) for pod in pods]
    for service in found:
        if service["kind"] == "Service":
            wanted = service["spec"]["selector"].items()
            assert any(wanted <= pod.items() for pod in labels)


@pytest.mark.parametrize("folder", FOLDERS)
def test_our_programs_take_their_command_lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "read_hostfile", lambda _path: [Host("a", 2)])
    listened, dialled = set(), set()
    for manifest in m.render(folder):
        for template in m.pod_templates(manifest):
            for container in m.containers(template):
                line = [*container.get("command", []), *container.get("args", [])]
                if line[:1] == ["lightccrun"]:
                    options = arguments.checked(arguments.make_parser().parse_args(line[1:]))
                    assert isinstance(options, arguments.LaunchOptions)
                    assert options.command == ["python", "/train/train.py"]
                    if options.listen is not None:
                        listened.add(f"train-launcher:{options.listen.port}")
                elif line[:1] == ["lightcc-worker"]:
                    args = worker.make_parser().parse_args(line[1:])
                    dialled.add(args.join)
                    assert args.grace < template["spec"]["terminationGracePeriodSeconds"]
                elif any("lightcc-pod" in word for word in line):
                    assert line == COMMAND_OF_THE_IMAGE
                    grace = pod.make_parser().parse_args(["sshd"]).grace
                    assert grace < template["spec"]["terminationGracePeriodSeconds"]
    assert dialled <= listened, "workers dial where nobody listens"


@pytest.mark.parametrize("folder", FOLDERS)
def test_mpi_jobs_keep_the_rules_of_their_operator(folder: Path) -> None:
    for job in m.render(folder):
        if job["kind"] != "MPIJob":
            continue
        workers = job["spec"]["mpiReplicaSpecs"]["Worker"]
        last = f"{job['metadata']['name']}-worker-{workers['replicas'] - 1}"
        assert DNS_LABEL.match(last), last
        assert workers["restartPolicy"] == "OnFailure", "a pod that has failed is never made anew"


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (["spec", "launcherCreationPolicy"], "WaitForWorkers", "is not one of"),
        (["spec", "slots"], 2, "slots"),
        (["spec", "mpiReplicaSpecs", "Launcher", "replicas"], 2, "1 was expected"),
    ],
)
def test_a_mistake_in_a_kind_of_its_own_is_found(path: list[str], value: object, text: str) -> None:
    (job,) = m.render(m.ROOT / "mpijob")
    at: Any = job
    for word in path[:-1]:
        at = at[word]
    at[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError, match=text):
        check(job)


def test_a_mistake_in_a_pod_and_a_kind_without_a_schema_are_found() -> None:
    (job,) = m.render(m.ROOT / "mpijob")
    job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["volume"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        check(job)
    with pytest.raises(FileNotFoundError):
        check({"apiVersion": "example.org/v1", "kind": "Unknown", "spec": {}})


def test_a_patch_that_fits_nothing_is_found() -> None:
    with pytest.raises(m.ManifestError, match="nothing is there"):
        m.apply({"spec": {}}, {"op": "replace", "path": "/spec/replicas", "value": 1})
