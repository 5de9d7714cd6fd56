"""Manifests as kustomize renders them, as far as the folders of deploy/kubernetes use it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
KEYS = {"apiVersion", "kind", "resources", "patches"}

Manifest = dict[str, Any]


class ManifestError(ValueError):
    """A folder that kustomize would refuse, or that uses more of it than is known here."""


def folders() -> list[Path]:
    """Returns all folders that can be rendered."""
    return sorted(path.parent for path in ROOT.glob("*/kustomization.yaml"))


def render(folder: Path) -> list[Manifest]:
    """Returns what `kubectl kustomize FOLDER` prints."""
    description = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(description) - KEYS:
        raise ManifestError(f"{folder.name}: {unknown} in kustomization.yaml")
    found: list[Manifest] = []
    for name in description["resources"]:
        path = (folder / name).resolve()
        if path.is_file() and folder not in path.parents:
            raise ManifestError(f"{folder.name}: kustomize reads no file outside of it: {name}")
        found += render(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for patch in description.get("patches", []):
        kind, name = patch["target"]["kind"], patch["target"]["name"]
        targets = [it for it in found if (it["kind"], it["metadata"]["name"]) == (kind, name)]
        if len(targets) != 1:
            raise ManifestError(f"{folder.name}: {len(targets)} resources are {kind} {name}")
        for step in yaml.safe_load(patch["patch"]):
            apply(targets[0], step)
    return found


def apply(manifest: Manifest, step: dict[str, Any]) -> None:
    """Applies one operation of a JSON patch (RFC 6902)."""
    *way, last = [word.replace("~1", "/") for word in step["path"].split("/")[1:]]
    at: Any = manifest
    for word in way:
        at = at[int(word) if isinstance(at, list) else word]
    if step["op"] == "replace" and last not in at:
        raise ManifestError(f"{step['path']}: nothing is there to be replaced")
    if step["op"] not in ("add", "replace"):
        raise ManifestError(f"operation {step['op']}")
    at[last] = copy.deepcopy(step["value"])


def pod_templates(manifest: Manifest) -> list[Manifest]:
    """Returns the templates of pods in a manifest."""
    spec = manifest["spec"]
    if manifest["kind"] == "MPIJob":
        return [replica["template"] for replica in spec["mpiReplicaSpecs"].values()]
    return [spec["template"]] if "template" in spec else []


def containers(template: Manifest) -> list[Manifest]:
    """Returns all containers of a pod's template."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]
