"""What deploy/ renders for Kubernetes, held against its schemas and against the services."""

import importlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from scripts.kustomize import KustomizeMissing, kustomize
from tests.support.crds import CrdMissing, schema
from tests.unit.deploy.test_observed import SERIES, shown

from evener.bus.kafka_agreement import KAFKA_PARTITIONS
from evener.cli.up import SERVICES
from evener.service.config_app import load

TREE = Path(__file__).parents[3]
OVERLAYS = ("trial", "production")
SECRETS = ("operator-token", "capability-key", "kafka-ca.pem", "kafka-password")
FOREIGN = {
    ("keda.sh/v1alpha1", "ScaledObject"): ("github.com/kedacore/keda/v2@v2.21.0", "config/crd/bases/keda.sh_scaledobjects.yaml"),
    ("monitoring.coreos.com/v1", "PodMonitor"): (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
    ),
}
"""Kinds that operators bring, and the module and file with the schema of each."""

Document = dict[str, Any]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Document]]:
    """Return the documents of each overlay."""
    try:
        program = kustomize()
    except KustomizeMissing as missing:
        pytest.skip(f"NOT TESTED ON KUBERNETES' SCHEMAS: {missing}")
    folder = tmp_path_factory.mktemp("deploy")
    shutil.copytree(TREE / "deploy", folder, dirs_exist_ok=True)
    documents = {}
    for name in OVERLAYS:
        secrets = folder / "overlays" / name / "secrets"
        secrets.mkdir(exist_ok=True)
        for secret in SECRETS:
            (secrets / secret).write_text("drawn\n")
        (secrets / "objects.env").write_text("AWS_ACCESS_KEY_ID=key\n")
        made = subprocess.run([program, "build", str(secrets.parent)], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        documents[name] = list(yaml.safe_load_all(made.stdout))
    return documents


def _of(documents: list[Document], *kinds: str) -> list[Document]:
    return [document for document in documents if document["kind"] in kinds]


def _workloads(documents: list[Document]) -> dict[str, Document]:
    """Return the workload of each service."""
    found = {}
    for document in _of(documents, "Deployment", "StatefulSet"):
        service = document["spec"]["template"]["metadata"]["labels"].get("evener.service")
        if service is not None:
            assert service not in found
            found[service] = document
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_fits_the_schemas_of_kubernetes(rendered: dict[str, list[Document]], overlay: str) -> None:
    for document in rendered[overlay]:
        if (document["apiVersion"], document["kind"]) in FOREIGN:
            continue
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize(("version", "kind"), FOREIGN)
def test_kinds_of_operators_fit_the_schemas_of_their_operators(rendered: dict[str, list[Document]], version: str, kind: str) -> None:
    documents = _of(rendered["production"], kind)
    assert documents
    try:
        known = schema(*FOREIGN[version, kind], version.rpartition("/")[2])
    except CrdMissing as missing:
        pytest.skip(f"NOT TESTED ON THE SCHEMA OF {kind}: {missing}")
    for document in documents:
        jsonschema.validate(document, known)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_service_has_one_workload_that_can_be_probed_drained_and_told_apart(rendered: dict[str, list[Document]], overlay: str) -> None:
    """Named after its pod, reached at its pod's address, without rights, and one at a time taken from a node."""
    workloads = _workloads(rendered[overlay])
    disrupted = [budget["spec"]["selector"]["matchLabels"] for budget in _of(rendered[overlay], "PodDisruptionBudget")]
    assert set(workloads) == set(SERVICES)
    for service, workload in workloads.items():
        template = workload["spec"]["template"]
        (container,) = template["spec"]["containers"]
        variables = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
        assert container["args"] == [f"evener.{service}"]
        assert variables["EVENER_ADDRESS"] == "http://$(POD_IP):8700"
        assert variables["EVENER_INSTANCE"] == {"fieldRef": {"fieldPath": "metadata.name"}}
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert container["livenessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/healthz"
        assert template["spec"]["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not template["spec"]["enableServiceLinks"]
        assert any(labels.items() <= template["metadata"]["labels"].items() for labels in disrupted), service
    assert workloads["provider_gateway"]["kind"] == workloads["sandbox_runner"]["kind"] == "StatefulSet"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_understand_their_configuration(rendered: dict[str, list[Document]], overlay: str, tmp_path: Path) -> None:
    """The file, and the variables of each pod: an unknown key would end all of them at their start."""
    (config,) = (one for one in _of(rendered[overlay], "ConfigMap") if one["metadata"]["name"].startswith("evener"))
    for secret in SECRETS:
        (tmp_path / secret).write_text("drawn\n")
    file = tmp_path / "evener.toml"
    file.write_text(config["data"]["evener.toml"].replace("/run/secrets/evener", str(tmp_path)))
    for service, workload in _workloads(rendered[overlay]).items():
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        environ = {one["name"]: one.get("value", "given") for one in container["env"]}
        read = load(
            importlib.import_module(f"evener.{service}.config").Config,
            ["--config", str(file)],
            environ | {"EVENER_CONFIG": str(file)},
            service,
        )
        assert (read.host, read.port, read.operator_token) == ("0.0.0.0", 8700, "drawn")  # noqa: S104 - of the pod alone
        assert workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > read.stop_seconds + 15


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_volume_is_there(rendered: dict[str, list[Document]], overlay: str) -> None:
    """A claim or a secret that nobody makes keeps a pod waiting."""
    documents = rendered[overlay]
    made = {(one["kind"], one["metadata"]["name"]) for one in documents}
    volumes = [
        volume
        for one in _of(documents, "Deployment", "StatefulSet", "Job")
        for volume in one["spec"]["template"]["spec"].get("volumes", ())
    ]
    wanted = {
        ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) for volume in volumes if "persistentVolumeClaim" in volume
    }
    wanted |= {("Secret", volume["secret"]["secretName"]) for volume in volumes if "secret" in volume}
    wanted |= {("ConfigMap", volume["configMap"]["name"]) for volume in volumes if "configMap" in volume}

    assert wanted - made == set()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_network_policies_name_labels_that_pods_have(rendered: dict[str, list[Document]], overlay: str) -> None:
    """A policy of a label that nothing has would cut everything off, or nothing."""
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in _of(rendered[overlay], "Deployment", "StatefulSet", "Job")]
    selectors = list(_pod_selectors([policy["spec"] for policy in _of(rendered[overlay], "NetworkPolicy")]))

    assert selectors
    assert [labels for labels in selectors if not any(labels.items() <= pod.items() for pod in pods)] == []


def _pod_selectors(found: Any) -> Any:
    """Yield the labels of all selectors of pods, however deep."""
    if isinstance(found, list):
        for one in found:
            yield from _pod_selectors(one)
    elif isinstance(found, dict):
        if "podSelector" in found:
            yield found["podSelector"]["matchLabels"]
        yield from _pod_selectors(list(found.values()))


def test_scaling_asks_for_series_that_are_there_and_stays_below_the_partitions(rendered: dict[str, list[Document]]) -> None:
    """KEDA would hold the least number of instances for ever, and say so in its own log alone."""
    workloads = {(one["kind"], one["metadata"]["name"]) for one in _of(rendered["production"], "Deployment", "StatefulSet")}
    scaled = _of(rendered["production"], "ScaledObject")
    assert scaled
    for one in scaled:
        target, (trigger,) = one["spec"]["scaleTargetRef"], one["spec"]["triggers"]
        assert (target["kind"], target["name"]) in workloads
        assert trigger["type"] == "prometheus"
        assert {"serverAddress", "query", "threshold"} <= trigger["metadata"].keys()
        assert set(SERIES.findall(trigger["metadata"]["query"])) <= shown()
        assert one["spec"]["minReplicaCount"] <= one["spec"]["maxReplicaCount"] <= KAFKA_PARTITIONS
