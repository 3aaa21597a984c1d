"""The files of deploy/, as far as they can be held to something without a cluster: schemas, and this package."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml

from patchsvdd.apps.cli import app
from patchsvdd.core.version import __version__
from support.parts import ROOT

DEPLOY = ROOT / "deploy"
LAUNCHER = DEPLOY / "ray-cluster.yaml"
MANIFESTS = [path for path in sorted(DEPLOY.glob("*.yaml")) if path != LAUNCHER]
KUBERNETES = "1.31"
RAY_KINDS = ("RayJob", "RayCluster")
SCHEMA = json.loads((ROOT / "tests" / "data" / "ray-v1.schema.json").read_text())

Object = dict[str, Any]
every_manifest = pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)


def objects(manifest: Path) -> list[Object]:
    return list(yaml.safe_load_all(manifest.read_text()))


def ray_version() -> str:
    found = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def cluster_of(one: Object) -> Object:
    """The cluster that a RayJob or RayCluster describes."""
    found: Object = one["spec"]["rayClusterSpec"] if one["kind"] == "RayJob" else one["spec"]
    return found


def pod_templates(one: Object) -> list[Object]:
    """The pods that an object makes."""
    if one["kind"] in RAY_KINDS:
        cluster = cluster_of(one)
        return [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]
    return [one["spec"]["template"]] if one["kind"] == "Deployment" else []


def containers(one: Object) -> Iterator[Object]:
    for template in pod_templates(one):
        yield from template["spec"].get("initContainers", [])
        yield from template["spec"]["containers"]


def check_command(words: list[str]) -> None:
    """Nothing, or an error where our command line does not know a command or an option."""
    assert words[0] == "patchsvdd"
    command: Any = typer.main.get_command(app)
    words = words[1:]
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"there is no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    with command.context_class(command) as context:
        command.make_parser(context).parse_args(args=list(words))


def commands_of(one: Object) -> list[list[str]]:
    """Every patchsvdd command that an object runs."""
    found = [shlex.split(one["spec"]["entrypoint"])] if one["kind"] == "RayJob" else []
    for container in containers(one):
        words = container.get("command", [])
        if words[:2] == ["bash", "-c"]:
            inside = re.findall(r"patchsvdd [^>&;|]+", words[2])
            assert inside
            found += [shlex.split(text) for text in inside]
        elif words[:1] == ["patchsvdd"]:
            found.append(words)
    return found


def test_the_launcher_accepts_its_file() -> None:
    import ray.autoscaler
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load(LAUNCHER.read_text())
    schema = Path(ray.autoscaler.__file__).with_name("ray-schema.json")
    jsonschema.validate(config, json.loads(schema.read_text()))
    prepared = prepare_config(config)
    validate_config(prepared)
    assert "--env RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    workers = len(config["provider"]["worker_ips"])
    (node,) = prepared["available_node_types"].values()
    assert (node["min_workers"], node["max_workers"]) == (workers, workers)
    assert config["docker"]["pull_before_run"] is False
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config | {"workers": 3}, json.loads(schema.read_text()))


def test_the_launcher_starts_ray_with_options_it_has() -> None:
    from ray.scripts.scripts import start, stop

    config = yaml.safe_load(LAUNCHER.read_text())
    known = {option for command in (start, stop) for one in command.params for option in one.opts}
    for line in config["head_start_ray_commands"] + config["worker_start_ray_commands"]:
        words = shlex.split(line.rpartition(";")[2])
        assert words[0] == "ray"
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known
    head = " ".join(config["head_start_ray_commands"])
    assert "--port=6379" in head
    assert "$RAY_HEAD_IP:6379" in " ".join(config["worker_start_ray_commands"])


@every_manifest
def test_kubernetes_knows_every_object_and_field(manifest: Path) -> None:
    checked = []
    for one in objects(manifest):
        if one["kind"] not in RAY_KINDS:
            checked.append(one)
        for template in pod_templates(one):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"} | template.get("metadata", {})}
            checked.append(pod | {"spec": template["spec"]})
    assert checked
    for one in checked:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(one | {"no-such-field": 1}, KUBERNETES, strict=True)


@every_manifest
def test_kuberay_knows_every_field(manifest: Path) -> None:
    for one in objects(manifest):
        if one["kind"] in RAY_KINDS:
            jsonschema.validate(one, SCHEMA)
            assert cluster_of(one)["authOptions"] == {"mode": "token"}
            for group in cluster_of(one)["workerGroupSpecs"]:
                assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
            wrong = {**one, "spec": {**one["spec"], "headGroup": {}}}
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(wrong, SCHEMA)


@every_manifest
def test_pods_are_not_root_and_find_what_they_name(manifest: Path) -> None:
    everything = [one for path in MANIFESTS for one in objects(path)]
    claims = {one["metadata"]["name"] for one in everything if one["kind"] == "PersistentVolumeClaim"}
    secrets = {one["metadata"]["name"] for one in everything if one["kind"] == "Secret"}
    for one in objects(manifest):
        for template in pod_templates(one):
            spec = template["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            volumes = spec.get("volumes", [])
            assert {volume["persistentVolumeClaim"]["claimName"] for volume in volumes} <= claims
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
                assert mounted <= {volume["name"] for volume in volumes}
                assert {source["secretRef"]["name"] for source in container.get("envFrom", [])} <= secrets
                assert container["securityContext"]["allowPrivilegeEscalation"] is False


@every_manifest
def test_our_command_line_knows_every_command(manifest: Path) -> None:
    found = [words for one in objects(manifest) for words in commands_of(one)]
    assert found or manifest.name == "kuberay-raycluster.yaml"
    for words in found:
        check_command(words)


def test_an_option_that_is_none_is_noticed() -> None:
    with pytest.raises(Exception, match="--clusters"):
        check_command(shlex.split("patchsvdd inspect model photos --out out --clusters auto"))
    with pytest.raises(AssertionError, match="no command look"):
        check_command(["patchsvdd", "look"])


def test_our_command_line_knows_every_command_of_the_guide() -> None:
    text = (DEPLOY / "README.md").read_text().replace("\\\n", " ")
    found = re.findall(
        r"(?:^|-- |2\.60\.0 |\s{2})(patchsvdd (?:inspect|train|benchmark|serve|key) [^#\n`]*)", text, re.MULTILINE
    )
    assert len(found) >= 4
    for line in found:
        if "--cluster" in line and "inspect" not in line:
            line = re.sub(r" --(cluster \S+|workers \S+)", "", line)
        check_command(shlex.split(line))


def test_one_image_and_one_ray_everywhere() -> None:
    expected = f"registry.example.com/patchsvdd:{__version__}-ray{ray_version()}"
    assert yaml.safe_load(LAUNCHER.read_text())["docker"]["image"] == expected
    for manifest in MANIFESTS:
        for one in objects(manifest):
            assert {container["image"] for container in containers(one)} <= {expected}
            if one["kind"] in RAY_KINDS:
                assert cluster_of(one)["rayVersion"] == ray_version()
    for path in (*filter(Path.is_file, DEPLOY.rglob("*")), ROOT / "docs" / "cluster.md"):
        named = re.findall(r"registry\.example\.com/patchsvdd:[\w.+-]*\w", path.read_text())
        assert set(named) <= {expected, f"{expected}-cpu"}, path.name


def test_the_image_is_built_from_what_there_is() -> None:
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    instructions = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    copied = []
    for name, rest in instructions:
        if name == "COPY":
            *sources, _ = rest.split()
            copied += sources
    assert "constraints.txt" in copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r'"\.\[([a-z,]+)\]"', text)
    assert extras is not None
    assert {"cluster", "fast"} <= set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert {project["readme"], *project["license-files"]} <= set(copied)
    last = dict(instructions)
    assert json.loads(last["CMD"])[0] in project["scripts"]
    assert last["USER"] == "1000"
    assert "${PIP_OPTIONS}" in text
    users = {
        template["spec"]["securityContext"]["runAsUser"]
        for path in MANIFESTS
        for one in objects(path)
        for template in pod_templates(one)
    }
    assert users == {1000}
