"""The manifests are what Kubernetes' API takes, they fit together, and what they start moves weights."""

import contextlib
import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import fastjsonschema
import pytest
import yaml

FOLDER = Path("examples/launch/kubernetes")
OBJECTS = [
    document
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
WORKLOADS = {o["metadata"]["name"]: o for o in OBJECTS if "template" in o["spec"]}
VERSIONS = ["1.25", "1.37"]


class Api:
    """The schemas of one version of Kubernetes' API."""

    def __init__(self, version):
        text = Path(f"../kubernetes_schemas/{version}.json").read_text()
        # Each definition refers to others by their place in a file for all.
        self.definitions = json.loads(text.replace("/api/_definitions.json#/$defs/", "#/$defs/"))[
            "$defs"
        ]
        self.names = {
            (kind["group"], kind["version"], kind["kind"]): name
            for name, definition in self.definitions.items()
            for kind in definition.get("x-kubernetes-group-version-kind", [])
        }

    def refuses(self, thing):
        """Says why the API would refuse an object, or returns None."""
        group, _, version = thing["apiVersion"].rpartition("/")
        name = self.names[group, version, thing["kind"]]
        schema = {"$ref": f"#/$defs/{name}", "$defs": self.definitions}
        try:
            fastjsonschema.validate(schema, thing, formats={".*": ".*"})
        except fastjsonschema.JsonSchemaException as error:
            return error.message
        return None


@pytest.fixture(scope="module", params=VERSIONS)
def api(request):
    return Api(request.param)


def name_of(thing):
    return f"{thing['kind']} {thing['metadata']['name']}"


@pytest.mark.parametrize("thing", OBJECTS, ids=name_of)
def test_the_api_takes_each_object(api, thing):
    assert api.refuses(thing) is None


def test_the_schemas_refuse_a_misspelt_field_and_a_wrong_type(api):
    job = copy.deepcopy(WORKLOADS["waybill-trainers"])
    job["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    assert "imagee" in api.refuses(job)
    job = copy.deepcopy(WORKLOADS["waybill-trainers"])
    job["spec"]["completions"] = "2"
    assert "completions" in api.refuses(job)


def labels_of(workload):
    return workload["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("thing", OBJECTS, ids=name_of)
def test_every_selector_finds_pods(thing):
    selector = thing["spec"].get("selector") or thing["spec"].get("podSelector")
    if selector is None:
        assert thing["kind"] == "Job"  # It makes one of its own.
        return
    wanted = selector.get("matchLabels", selector).items()
    assert any(wanted <= labels_of(workload).items() for workload in WORKLOADS.values())
    if thing in WORKLOADS.values():
        assert wanted <= labels_of(thing).items()


def test_the_network_policy_is_for_all_pods():
    (policy,) = (o for o in OBJECTS if o["kind"] == "NetworkPolicy")
    wanted = policy["spec"]["podSelector"]["matchLabels"].items()
    assert all(wanted <= labels_of(workload).items() for workload in WORKLOADS.values())


def test_every_trainer_knows_how_many_there_are():
    spec = WORKLOADS["waybill-trainers"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (world,) = (e["value"] for e in container["env"] if e["name"] == "WORLD_SIZE")
    assert int(world) == spec["completions"] == spec["parallelism"]


class Cluster:
    """Starts the containers of workloads as processes on this host."""

    def __init__(self, folder):
        self.folder = folder
        self.address = None  # Of the controller, once it is started.
        self.exits = contextlib.ExitStack()
        paths = [os.path.abspath(path) for path in sys.path if path]
        self.common = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(paths)}

    def value(self, entry, pod, index):
        if "value" in entry:
            return entry["value"].replace("waybill-controller:7070", self.address or "")
        source = entry["valueFrom"]
        if source.get("secretKeyRef") == {"name": "waybill", "key": "token"}:
            return "a secret of the job"
        return {
            "metadata.name": pod,
            "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
        }[source["fieldRef"]["fieldPath"]]

    def translate(self, words):
        """What the words of a command are on this host."""
        programs = {"waybill": os.path.abspath("tools/waybill/waybill"), "python": sys.executable}
        words = [programs[words[0]], *words[1:]]
        places = {
            "0.0.0.0:7070": "127.0.0.1:0",
            "127.0.0.1:7070": self.address or "",
            "/app/": os.path.abspath("examples/launch") + "/",
            "/state/": f"{self.folder}/",
        }
        pattern = re.compile("|".join(map(re.escape, places)))
        return [pattern.sub(lambda found: places[found[0]], word) for word in words]

    def environment(self, container, pod, index):
        entries = {e["name"]: self.value(e, pod, index) for e in container["env"]}
        return {**self.common, **entries}

    def start(self, name, index=0):
        """Returns the process of the workload's pod of this index."""
        pod = f"{name}-{index}"
        (container,) = WORKLOADS[name]["spec"]["template"]["spec"]["containers"]
        process = subprocess.Popen(
            self.translate(container["command"]),
            env=self.environment(container, pod, index),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.exits.enter_context(process)
        self.exits.callback(process.kill)
        return process

    def is_ready(self, name):
        (container,) = WORKLOADS[name]["spec"]["template"]["spec"]["containers"]
        command = self.translate(container["readinessProbe"]["exec"]["command"])
        environment = self.environment(container, f"{name}-0", 0)
        return (
            subprocess.run(command, env=environment, capture_output=True, check=False).returncode
            == 0
        )


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    with cluster.exits:
        yield cluster


def test_every_engine_shows_what_the_trainers_publish(cluster):
    controller = cluster.start("waybill-controller")
    cluster.address = controller.stdout.readline().split(" on ")[1].split(",")[0]
    assert cluster.is_ready("waybill-controller")
    assert (cluster.folder / "decisions").exists()
    first = cluster.start("waybill-engines", 0)
    trainers = [cluster.start("waybill-trainers", index) for index in (0, 1)]
    for version in (1, 2, 3):
        expected = f"waybill-engines-0, rank 0: version {version}: {{{version / 2}}}\n"
        assert first.stdout.readline() == expected
    assert [trainer.wait() for trainer in trainers] == [0, 0]
    # One that comes later gets the newest version from the first one.
    second = cluster.start("waybill-engines", 1)
    assert second.stdout.readline() == "waybill-engines-1, rank 0: version 3: {1.5}\n"


def test_a_controller_that_is_not_there_is_not_ready(cluster):
    cluster.address = "127.0.0.1:1"
    assert not cluster.is_ready("waybill-controller")
