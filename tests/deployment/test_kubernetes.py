"""The Kubernetes manifests: sound to their schemas, the same as docker-compose.yml where both say it, and enough to start.

The page's lines make the files; each pod's folder is put together from what it mounts, and its command is tried on it.
"""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from polyclinic.deployment.hospital import HospitalNode
from polyclinic.files import SECRET

from .conftest import ROOT, Cli, records

PAGE = ROOT / "docs" / "deploy" / "kubernetes.md"
SIDES = ("coordinator", "hospital")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
LIKE = {"coordinator": COMPOSE["superlink"], "hospital": COMPOSE["hospital-a"]}


def documents(side: str) -> list[dict[str, Any]]:
    folder = ROOT / "docs" / "deploy" / "kubernetes" / side
    return [one for path in sorted(folder.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())]


def named(side: str, kind: str) -> dict[str, dict[str, Any]]:
    return {one.get("metadata", {}).get("name", ""): one for one in documents(side) if one["kind"] == kind}


def stateful(side: str) -> dict[str, Any]:
    [found] = [
        one for one in documents(side) if one["kind"] in ("StatefulSet", "Deployment", "DaemonSet", "Job", "Pod")
    ]
    return found


def pod(side: str) -> dict[str, Any]:
    return dict(stateful(side)["spec"]["template"]["spec"])


def container(side: str) -> dict[str, Any]:
    [only, metrics] = pod(side)["containers"]
    assert metrics["name"] == "metrics"
    return dict(only)


def lines(step: int) -> list[list[str]]:
    """The arguments of every line that the page shows in a step."""
    section = PAGE.read_text().split("\n## ")[step]
    blocks = re.findall(r"^```text\n(.*?)^```", section, re.S | re.M)
    return [shlex.split(line.split(" < ")[0]) for text in blocks for line in text.replace("\\\n", " ").splitlines()]


@pytest.mark.parametrize("version", ["1.29", "1.37"])
@pytest.mark.parametrize("side", SIDES)
def test_the_schemas_accept_every_resource_and_refuse_a_slip(side: str, version: str) -> None:
    for one in documents(side):
        if one["kind"] != "Kustomization":  # kubectl kustomize reads that, below
            kubernetes_validate.validate(one, version, strict=True)
    slip = stateful(side)
    slip["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFileSystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyRootFileSystem"):
        kubernetes_validate.validate(slip, version, strict=True)


@pytest.mark.parametrize("side", SIDES)
def test_there_is_one_pod_with_one_volume_and_deleting_the_manifests_leaves_it(side: str) -> None:
    found = stateful(side)
    assert found["kind"] == "StatefulSet" and found["spec"]["replicas"] == 1
    [claim] = found["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert not named(side, "PersistentVolumeClaim") and "persistentVolumeClaimRetentionPolicy" not in found["spec"]
    [built] = named(side, "Kustomization").values()
    assert set(built["resources"]) == {
        path.name for path in (ROOT / "docs/deploy/kubernetes" / side).glob("*.yaml")
    } - {"kustomization.yaml", "namespace.yaml"}
    assert (
        named(side, "Namespace")[built["namespace"]]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        == "restricted"
    )


@pytest.mark.parametrize("side", SIDES)
def test_a_pod_is_confined_as_its_container_in_compose_is(side: str) -> None:
    whole, only, like = pod(side), container(side), LIKE[side]
    assert whole["securityContext"]["runAsNonRoot"] and whole["securityContext"]["runAsUser"] == 10001
    assert f"--uid {whole['securityContext']['fsGroup']}" in (ROOT / "docker" / "Dockerfile").read_text()
    assert whole["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert whole["automountServiceAccountToken"] is False and not {"hostNetwork", "hostPID", "hostIPC"} & set(whole)
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert only["image"] == like["image"] and only["args"] == like["command"]
    assert only["resources"]["limits"]["memory"] == like["mem_limit"].replace("g", "Gi")
    assert f"{whole['terminationGracePeriodSeconds']}s" == like["stop_grace_period"]
    assert {item["name"]: item.get("value") for item in only["env"]} == like["environment"]
    [built] = named(side, "Kustomization").values()
    assert [f"{image['name']}:{image['newTag']}" for image in built["images"]] == [like["image"]]
    template = stateful(side)["spec"]["template"]["metadata"]
    # A proxy beside the SuperLink would speak from the loopback, which the gate trusts.
    assert template["labels"]["sidecar.istio.io/inject"] == "false"
    assert template["annotations"]["linkerd.io/inject"] == "disabled"


@pytest.mark.parametrize("side", SIDES)
def test_beside_each_is_one_that_serves_its_metrics_and_writes_nothing(side: str, cli: Cli) -> None:
    main, metrics = pod(side)["containers"]
    assert metrics["securityContext"] == main["securityContext"] and metrics["image"] == main["image"]
    assert all(mount["readOnly"] for mount in metrics["volumeMounts"] if mount["name"] != "tmp")
    places = {(mount["name"], mount["mountPath"]) for mount in main["volumeMounts"]}
    assert {(mount["name"], mount["mountPath"]) for mount in metrics["volumeMounts"]} <= places
    assert not any(mount["mountPath"].endswith((".key", "/secret")) for mount in metrics["volumeMounts"])
    program, *command, host, address, folder = metrics["args"]
    assert (program, command, address, folder) == ("polyclinic", [side, "metrics"], "0.0.0.0", f"/{side}")
    shown = cli(*command, "--help").out
    assert host in shown and str(metrics["ports"][0]["containerPort"]) in shown


def test_a_hospital_is_ready_as_it_is_healthy_in_compose_and_the_coordinators_probes_ask_its_port() -> None:
    from polyclinic.deployment.flower.gate import Gate

    only = container("hospital")
    kind, command = LIKE["hospital"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL" and only["readinessProbe"]["exec"]["command"] == ["sh", "-c", command]
    assert "/hospital/flwr/heartbeat" in command
    for probe in ("startupProbe", "livenessProbe"):
        assert "9094" in str(only[probe]["exec"]["command"])  # a restart would not bring a coordinator back
    only = container("coordinator")
    ports = {port["name"]: port["containerPort"] for port in only["ports"]}
    assert ports[only["livenessProbe"]["tcpSocket"]["port"]] == 8000
    for probe in ("startupProbe", "readinessProbe"):
        asked = only[probe]["httpGet"]
        assert asked["scheme"] == "HTTPS" and ports[asked["port"]] == 8000
        # From the kubelet, which is not the pod's own machine.
        assert Gate(None)._may({"path": asked["path"], "client": ("10.0.0.1", 1), "server": ("10.0.0.2", 8000)})  # type: ignore[arg-type]


@pytest.mark.parametrize("side", SIDES)
def test_selectors_find_the_pod_and_services_its_port(side: str) -> None:
    found = stateful(side)
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert found["spec"]["selector"]["matchLabels"].items() <= labels.items()
    services = named(side, "Service")
    assert set(services) == {found["spec"]["serviceName"]} - {""}
    for service in services.values():
        assert service["spec"]["selector"].items() <= labels.items()
        ports = {port["name"]: port["containerPort"] for port in container(side)["ports"]}
        assert [ports[port["targetPort"]] for port in service["spec"]["ports"]] == [8000]


def test_only_what_must_be_is_reached() -> None:
    """Everything is refused first; then what each policy lets through, as (whom, ports)."""

    def open_to(side: str) -> list[tuple[str, str, Any]]:
        found = []
        for policy in named(side, "NetworkPolicy").values():
            whose = policy["spec"]["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/name", "all")
            for way, peers in (("ingress", "from"), ("egress", "to")):
                for rule in policy["spec"].get(way, []):
                    where = [
                        peer.get("podSelector", {}).get("matchLabels") or peer["ipBlock"]["cidr"]
                        for peer in rule.get(peers, [])
                    ]
                    found.append((whose, way, (where, [port["port"] for port in rule["ports"]])))
        return found

    for side in SIDES:
        assert named(side, "NetworkPolicy")["nothing-else"]["spec"] == {
            "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        }  # fmt: skip
    prometheus = {"app.kubernetes.io/name": "prometheus"}
    assert open_to("coordinator") == [
        ("coordinator", "ingress", ([], [8000])),
        ("coordinator", "ingress", ([prometheus], [9464])),
    ]
    hospital, database = ({"app.kubernetes.io/name": name} for name in ("hospital", "database"))
    assert open_to("hospital") == [
        ("hospital", "egress", (["203.0.113.10/32"], [8000])),
        ("hospital", "egress", ([database], [5432])),
        ("hospital", "egress", ([{"k8s-app": "kube-dns"}], [53, 53])),
        ("database", "ingress", ([hospital], [5432])),
        ("hospital", "ingress", ([prometheus], [9464])),
    ]


@pytest.fixture(scope="module")
def made(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A copy of each side's manifests, with what the page's lines make in it; a Secret's files by its name."""
    import contextlib

    folder = tmp_path_factory.mktemp("kubernetes")
    for step, side in enumerate(SIDES, 1):
        shutil.copytree(ROOT / "docs" / "deploy" / "kubernetes" / side, folder / side)
        if side == "hospital":
            shutil.copy(folder / "coordinator" / "folder" / "ca.crt", folder / side / "ca.crt")
            shutil.copy(records(folder / "records")[1], folder / side / "schema.toml")
            (folder / side / "password").write_text("s3cr3t\n")
        for program, *arguments in lines(step):
            with contextlib.chdir(folder / side):
                if program == "polyclinic":
                    done = cli(*arguments)
                    assert done.code == 0, done
                elif "create" in arguments:
                    put = folder / "secrets" / arguments[arguments.index("generic") + 1]
                    put.mkdir(parents=True)
                    for part in arguments:
                        if part.startswith("--from-file="):
                            shutil.copy(part.removeprefix("--from-file="), put)
    return {side: folder / side for side in SIDES} | {"secrets": folder / "secrets"}


def config_maps(side: str, copy: Path) -> dict[str, list[Path]]:
    [built] = named(side, "Kustomization").values()
    return {one["name"]: [copy / file for file in one["files"]] for one in built["configMapGenerator"]}


@pytest.mark.parametrize("side", SIDES)
def test_what_a_pod_mounts_is_enough_to_start(side: str, made: dict[str, Path], cli: Cli, tmp_path: Path) -> None:
    maps = config_maps(side, made[side])
    volumes = {volume["name"]: volume for volume in pod(side)["volumes"]}
    claims = {claim["metadata"]["name"] for claim in stateful(side)["spec"]["volumeClaimTemplates"]}
    used = set()
    for mount in container(side)["volumeMounts"]:
        used.add(mount["name"])
        place = tmp_path / mount["mountPath"].lstrip("/")
        if mount["name"] in claims or "emptyDir" in volumes[mount["name"]]:
            place.mkdir(parents=True)
            continue
        volume = volumes[mount["name"]]
        files = (
            maps[volume["configMap"]["name"]]
            if "configMap" in volume
            else list((made["secrets"] / volume["secret"]["secretName"]).iterdir())
        )
        assert mount["readOnly"]
        for file in files:
            if mount.get("subPath", file.name) == file.name:
                target = place if "subPath" in mount else place / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
    assert used == set(volumes) | claims
    program, *arguments, folder = container(side)["args"]
    done = cli(*arguments, tmp_path / folder.lstrip("/"), "--dry-run", "--json")
    assert program == "polyclinic" and done.code == 0, done
    if side == "hospital":
        found = HospitalNode.read(tmp_path / "hospital")
        [probe] = re.findall(r"127\.0\.0\.1', (\d+)", str(container(side)["livenessProbe"]))
        assert int(probe) == found.node.port and found.home == tmp_path / "hospital" / "home"
        assert (tmp_path / found.hospital.source["password-file"].lstrip("/")).read_text() == "s3cr3t\n"


@pytest.mark.parametrize("side", SIDES)
def test_no_secret_is_in_a_manifest_a_config_map_or_the_environment(side: str, made: dict[str, Path]) -> None:
    assert not named(side, "Secret")
    for file in (file for files in config_maps(side, made[side]).values() for file in files):
        assert file.stat().st_mode & 0o777 != SECRET and "PRIVATE KEY" not in file.read_text()
    secret = {
        path.name
        for path in (made[side] / "folder").iterdir()
        if path.is_file() and path.stat().st_mode & 0o777 == SECRET
    }
    put = {path.name for path in made["secrets"].glob(f"{side}-*/*")}
    # Of what init wrote for its owner's eyes alone, all but the authority's key goes into Secrets.
    assert secret - put == ({"ca.key"} if side == "coordinator" else set()) and put - secret <= {"password"}
    assert not any("valueFrom" in item for item in container(side)["env"])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("side", SIDES)
def test_kubectl_builds_what_the_schemas_accept(side: str, made: dict[str, Path]) -> None:
    built = list(yaml.safe_load_all(subprocess.check_output(["kubectl", "kustomize", str(made[side])], text=True)))
    for one in built:
        kubernetes_validate.validate(one, "1.37", strict=True)
    assert {one["metadata"]["namespace"] for one in built} == {f"polyclinic-{side}"}
    assert {one["kind"] for one in built} >= {"ConfigMap", "NetworkPolicy", "StatefulSet"}
    [found] = [one for one in built if one["kind"] == "StatefulSet"]
    [config] = [one for one in built if one["kind"] == "ConfigMap"]
    spec = found["spec"]["template"]["spec"]
    assert config["metadata"]["name"] in [volume.get("configMap", {}).get("name") for volume in spec["volumes"]]
    assert spec["containers"][0]["image"] == "registry.example/polyclinic:0.2.0"
    for arguments in lines(SIDES.index(side) + 1):
        if "create" in arguments:
            said = subprocess.check_output([*arguments, "--dry-run=client", "-o", "json"], cwd=made[side], text=True)
            assert json.loads(said)["kind"] == "Secret"


def test_the_page_shows_commands_that_there_are(cli: Cli) -> None:
    for arguments in lines(3):
        kubectl, namespace, side, action, *rest = arguments
        program, group, name, *options = rest[rest.index("--") + 1 :]
        assert (kubectl, namespace, action, program) == ("kubectl", "-n", "exec", "polyclinic")
        assert f"{group}-0" in rest and side == f"polyclinic-{group}"
        shown = cli(group, name, "--help")
        assert shown.code == 0 and all(option in shown.out for option in options if option.startswith("--"))
