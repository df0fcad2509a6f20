"""Likely mistakes: each ends in an error of ours, one line that says what was found.

Here is the list, through Python and through the command; what each message says is tested where
its module is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import resemblance as rs
from resemblance.errors import ResemblanceError, install_command

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
IMAGES = torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = np.arange(60) % 3


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def conv():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


class Samples(Dataset):
    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return self.sample(index)


def picture(index):
    from PIL import Image

    return Image.new("RGB", (8, 8)), 0


def refused(run, found):
    """The call must end in one line of ours, which says what was found."""
    with pytest.raises(ResemblanceError) as refusal:
        run()
    said = str(refusal.value)
    assert "\n" not in said
    assert re.search(found, said), said
    return said


# -- model and data -------------------------------------------------------------------------------

RECORD = {
    "float64 images": (conv, IMAGES.double(), "float64"),
    "uint8 images": (conv, (IMAGES * 255).byte(), "uint8"),
    "a bfloat16 model": (lambda: conv().bfloat16(), IMAGES, "bfloat16.*float32"),
    "one channel": (conv, IMAGES[:, :1], r"\(1, 8, 8\)"),
    "channels last": (conv, IMAGES.permute(0, 2, 3, 1), r"\(8, 8, 3\)"),
    "another size": (conv, IMAGES[..., :5], r"\(3, 8, 5\)"),
    "another width": (net, X[:, :4], r"\(4,\)"),
    "integers": (net, torch.ones(60, 6, dtype=torch.long), "int64"),
    "complex inputs": (net, X.to(torch.complex64), "complex64"),
    "another keyword": (net, {"pixel_values": X}, "pixel_values"),
    "rows as lists": (net, X.tolist(), "list"),
    "strings": (net, np.full((60, 6), "a"), "<U1"),
    "objects": (net, np.full((60, 6), None), "object"),
    "extended precision": (net, np.ones((60, 6), np.longdouble), "float"),
    "nothing": (net, None, "NoneType"),
    "a name": (net, "digits", "'digits'"),
    "a number": (net, 3, "int"),
    "a model as data": (net, net(), "Sequential"),
    "no samples": (net, X[:0], "empty"),
    "no batches": (net, [], "empty"),
    "one value": (net, torch.tensor(1.0), "nothing with samples"),
    "fewer labels": (net, (X, Y[:3]), r"\[3, 60\]"),
    "labels that are None": (net, (X, None), "NoneType"),
    "pictures": (conv, Samples(picture), "PIL.Image"),
    "pictures from a worker": (
        conv,
        DataLoader(Samples(picture), num_workers=1),
        "^samples cannot be collated .*PIL.Image",
    ),
    "pictures of two sizes": (
        conv,
        Samples(lambda i: torch.rand(3, 8 + i % 3, 8)),
        "stack expects each tensor to be equal size",
    ),
    "no model": (lambda: None, X, "NoneType"),
    "a class": (lambda: nn.Linear, X, "type"),
    "a name of a model": (lambda: "torchvision:resnet18", X, "str"),
    "a model that is not loaded": (lambda: nn.Linear(6, 3, device="meta"), X, "meta"),
    "complex features": (
        lambda: nn.Sequential(nn.Linear(6, 6, dtype=torch.complex64)),
        X.to(torch.complex64),
        "found no layer that gives a floating-point tensor",
    ),
}


@pytest.mark.parametrize(("model", "data", "found"), RECORD.values(), ids=RECORD)
def test_a_model_and_data_that_do_not_fit(model, data, found):
    refused(lambda: rs.record(model(), data, gradients=False), found)


def test_arrays_in_the_byte_order_of_another_machine_are_just_read():
    turned = X.numpy().astype(">f4")
    assert rs.record(net().eval(), turned).data == rs.record(net().eval(), X).data


# -- options --------------------------------------------------------------------------------------

NOT_WHOLE = (1.5, "8", True, -1, float("nan"))
OPTIONS = [
    *(("layers", value) for value in (None, 3, [None], [0], [], "", "relu")),
    *(("shard", value) for value in (1, "0/2", (0,), (0.5, 2), (2, 2), (0, 0), (False, True))),
    *(("seed", value) for value in (-1, 2**64, 1.5, "0", None, True)),
    *((name, value) for name in ("block", "per_sample", "batch_size") for value in NOT_WHOLE),
    *((name, value) for name in ("blocks", "buckets", "max_dim") for value in NOT_WHOLE),
    *((name, None) for name in ("block", "blocks", "buckets", "per_sample", "batch_size")),
    *(("beta", value) for value in (float("nan"), -1, "0.5", None, float("inf"), 1)),
    *(("pool", value) for value in (None, 3, "max")),
    *(("target", value) for value in (None, 3, "label")),
    ("on_bad", "ignore"),
    ("name", 3),
    ("data_id", 3),
    ("data_id", ""),
    ("logits", "logits"),
    ("call", "forward"),
]


@pytest.mark.parametrize(("name", "value"), OPTIONS)
def test_options_of_record(name, value):
    said = refused(lambda: rs.record(net(), X, **{name: value}), name.removesuffix("s"))
    assert repr(value) in said or isinstance(value, list)


@pytest.mark.parametrize(
    ("name", "value"),
    [o for o in OPTIONS if o[0] in ("seed", "shard", "blocks", "buckets", "batch_size", "max_dim")],
)
def test_options_of_record_arrays(name, value):
    said = refused(lambda: rs.record_arrays(X, data_id="x", **{name: value}), name)
    assert repr(value) in said


def test_a_seed_that_is_refused_runs_nothing():
    seen = []
    refused(lambda: rs.record(net(), X, seed=2**64, call=lambda *_: seen.append(1)), "seed")
    assert not seen


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ({"pool": lambda x: 3}, "int"),
        ({"pool": lambda x: x.mean()}, r"\(\)"),
        ({"logits": lambda z: 3}, "int"),
        ({"target": lambda z, batch: 3}, "int"),
    ],
)
def test_functions_that_give_something_else(option, found):
    refused(lambda: rs.record(net(), X, **option), found)


# -- labels ---------------------------------------------------------------------------------------

LABELS = {
    "names": (["a", "b"] * 30, "a, b"),
    "numbers that are no integers": (np.where(Y == 0, np.nan, Y), "float64"),
    "classes that the model lacks": (Y + 5, "label [5-7]"),
}


@pytest.mark.parametrize(("labels", "found"), LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("kind", [list, np.asarray])
def test_labels_to_differentiate(labels, found, kind):
    found = "float" if "float" in found else found
    refused(lambda: rs.record(net(), (X, kind(labels)), target="labels"), found)


NO_LABELS = {
    "none": (None, "no labels"),
    "NaN": (np.where(Y == 0, np.nan, Y), "NaN"),
    "some missing": ([None, 1] * 30, "NoneType"),
    "of two kinds": (["a", 1] * 30, "int, str"),
    "too few": ([1, 2], "2"),
    "one-hot": (np.eye(3)[Y], r"\(60, 3\)"),
    "one number": (3, r"\(\)"),
    "ragged": ([[1], [2, 3]], "different lengths"),
}


@pytest.mark.parametrize(("labels", "found"), NO_LABELS.values(), ids=NO_LABELS)
def test_labels_to_classify_by(labels, found):
    refused(lambda: rs.KernelClassifier(net()).fit(X, labels), found)
    fitted = rs.KernelClassifier(net()).fit(X, Y)
    refused(lambda: fitted.score(X, labels), found)


def test_names_are_labels_to_classify_by():
    names = np.array(["a", "b", "c"])[Y]
    for data, y in ((X, names), ((X, names), None), ((X, names.tolist()), None)):
        assert rs.KernelClassifier(net()).fit(data, y).classes_.tolist() == ["a", "b", "c"]


CLASSIFIER = [
    *(("alpha", value) for value in (float("nan"), 0, -1, "1", True)),
    *((name, value) for name in ("buckets", "batch_size", "exact_up_to") for value in NOT_WHOLE),
    *(("max_dim", value) for value in (*NOT_WHOLE, 0)),
    *(("seed", value) for value in (-1, 2**64, 1.5, None)),
    ("sketch", "some"),
    ("classes", ["a"]),
]


@pytest.mark.parametrize(("name", "value"), CLASSIFIER)
def test_options_of_the_classifier(name, value):
    refused(lambda: rs.KernelClassifier(net(), **{name: value}).fit(X, Y), name)


@pytest.mark.parametrize(
    "option",
    [
        *({"seed": value} for value in (-1, 2**64, 1.5, None)),
        *({"draws": value} for value in (0, 1.5, True, "x")),
        *({"chunk": value} for value in (0, 1.5, True, "x")),
    ],
)
def test_options_of_task2vec(option):
    refused(lambda: rs.task2vec(net(), X, **option), next(iter(option)))


# -- recordings -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rep():
    return rs.record(net(), X, keep_sums=True)


ONE = {
    "compare": lambda given, rep: rs.compare(given, rep),
    "compare, second": lambda given, rep: rs.compare(rep, given),
    "compare_all": lambda given, rep: rs.compare_all([rep, given]),
    "check": lambda given, rep: rs.check(rep, given, min_db=20),
    "trajectory": lambda given, rep: rs.trajectory([rep, given]),
    "adaptation": lambda given, rep: rs.adaptation(given),
    "fisher_rao": lambda given, rep: rs.fisher_rao(given),
    "merge": lambda given, rep: rs.merge([given]),
    "report": lambda given, rep: rs.report([given], "page.html"),
    "fit_representation": lambda given, rep: rs.KernelClassifier(
        net(), alpha=1.0
    ).fit_representation(given, Y),
}


@pytest.mark.parametrize("given", [None, 3, net(), "gone.rsm", "."], ids=str)
@pytest.mark.parametrize("reader", ONE.values(), ids=ONE)
def test_something_else_than_a_recording(reader, given, rep):
    kind = given if isinstance(given, str) else type(given).__name__
    refused(lambda: reader(given, rep), re.escape(kind))


@pytest.mark.parametrize("reader", ONE.values(), ids=ONE)
def test_a_list_or_a_layer_instead_of_one(reader, rep):
    refused(lambda: reader([rep], rep), "list")
    refused(lambda: reader(rep[0], rep), "Layer")


SEVERAL = {
    "compare_all": rs.compare_all,
    "trajectory": rs.trajectory,
    "merge": rs.merge,
    "report": lambda given: rs.report(given, "page.html"),
}


@pytest.mark.parametrize("reader", SEVERAL.values(), ids=SEVERAL)
def test_one_instead_of_a_list(reader, rep):
    refused(lambda: reader(rep), "one Representation")
    refused(lambda: reader("a.rsm"), r"'a\.rsm'")
    refused(lambda: reader(None), "NoneType")
    refused(lambda: reader({"a": rep}), "dict")


@pytest.mark.parametrize("given", [None, 3, ["a.rsm"]])
def test_something_else_than_a_path(given, rep):
    refused(lambda: rs.load(given), type(given).__name__)
    refused(lambda: rep.save(given), type(given).__name__)
    refused(lambda: rs.report([rep], given), type(given).__name__)


@pytest.mark.parametrize("key", [99, -99, None, 1.5, slice(0, 1), True, "act", (0, 1)])
def test_a_layer_that_is_not_there(key, rep):
    refused(lambda: rep[key], re.escape(repr(key)))
    if key is not None:
        refused(lambda: rs.compare_all([rep, rep], layer=key), re.escape(repr(key)))


def test_a_layer_by_any_integer(rep):
    assert rep[np.int64(0)] is rep[torch.tensor(0)] is rep[0]
    assert rep.layers[0:1] == (rep[0],)


def test_a_kind_that_there_is_not(rep):
    refused(lambda: rep[0].blocks("feature"), "'feature'")


@pytest.mark.parametrize("device", ["gpu", "tpu", "cuda:99", "", None, 0.5])
def test_a_device_that_there_is_not(device, rep):
    refused(lambda: rs.compare(rep, rep, device=device), re.escape(repr(device)))
    refused(lambda: rs.compare_all([rep, rep], device=device), re.escape(repr(device)))


@pytest.fixture
def another_default(rep):
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("another_default")
def test_a_default_device_that_is_not_the_host(rep):
    with torch.device("cpu"):
        model = net()
        recorded = rs.record(model, X, data_id="x")
        arrays = rs.record_arrays(X, data_id="x")
        assert rs.compare(arrays, recorded, kernel="features").mean()[0] > 0
    for use in (
        lambda: rs.record(model, X),
        lambda: rs.record_arrays(X, data_id="x"),
        lambda: rs.compare(recorded, rep),
        lambda: rs.compare_all([rep, rep]),
        lambda: rs.fisher_rao(rep),
    ):
        refused(use, r"torch's default device is 'meta'.*call this inside")


@pytest.mark.parametrize("value", [None, 3, "nka"])
@pytest.mark.parametrize("option", ["kernel", "index", "estimator"])
def test_a_kernel_index_or_estimator_that_there_is_not(option, value, rep):
    if (option, value) == ("kernel", None):
        pytest.skip("the default: features and gradients")
    refused(lambda: rs.compare(rep, rep, **{option: value}), re.escape(repr(value)))


@pytest.mark.parametrize("blocks", [0, 1.5, "3", True])
def test_options_of_compare_all(blocks, rep):
    refused(lambda: rs.compare_all([rep, rep], blocks=blocks), "blocks")


@pytest.mark.parametrize("depth", [-1, 1.5, "x"])
def test_options_of_fisher_rao(depth, rep):
    refused(lambda: rs.fisher_rao(rep, depth=depth), "depth")


# -- arrays ---------------------------------------------------------------------------------------

ARRAYS = {
    "complex": (np.ones((60, 3), complex), "complex128"),
    "complex tensor": (torch.ones(60, 3, dtype=torch.complex64), "complex64"),
    "strings": (np.full((60, 3), "a"), "<U1"),
    "objects": (np.ones((60, 3), object), "object"),
    "dates": (np.zeros((60, 3), "M8[s]"), "datetime64"),
    "ragged": ([[1, 2], [3]], "one length"),
    "nothing": (None, "expected features or outputs, found neither"),
    "a number": (3, r"\(\)"),
    "no rows": (np.ones((0, 3)), "empty"),
    "no columns": (np.ones((60, 0)), r"\(60, 0\)"),
    "no layers": ({}, "none"),
    "a layer that is None": ({"a": None}, "object"),
    "numbered layers": ({0: np.ones((60, 3))}, "found 0"),
    "sparse": (torch.ones(60, 3).to_sparse(), "sparse"),
}


@pytest.mark.parametrize(("array", "found"), ARRAYS.values(), ids=ARRAYS)
def test_arrays_that_are_no_features(array, found):
    refused(lambda: rs.record_arrays(array, data_id="x"), found)


def test_gradients_that_are_no_gradients():
    f = np.ones((60, 3))
    refused(lambda: rs.record_arrays(f, f * 1j, data_id="x"), "complex128")


@pytest.mark.parametrize("data_id", [None, "", 3])
def test_arrays_of_data_without_a_name(data_id):
    found = "neither" if data_id is None else re.escape(repr(data_id))
    refused(lambda: rs.record_arrays(X, data_id=data_id), f"`data_id`.*found {found}")


def test_lists_and_tables_are_arrays():
    pandas = pytest.importorskip("pandas")
    rows = X.double().numpy()
    turned = pandas.DataFrame(rows, index=range(60, 0, -1))  # rows go by position, not by label
    plain = rs.record_arrays(rows, data_id="x")
    for given in (rows.tolist(), turned, rows.astype(">f8")):
        assert torch.equal(
            rs.record_arrays(given, data_id="x")[0].buckets("features"),
            plain[0].buckets("features"),
        )


@pytest.mark.parametrize(
    "kernel", [None, "a.rsm", np.full((3, 3), None), np.eye(3) * 1j, np.eye(0), X.numpy()]
)
def test_matrices_that_are_no_kernels(kernel):
    for index in (rs.cka, rs.nbs):
        refused(lambda index=index: index(kernel, kernel), "expected a .*kernel")


# -- the command ----------------------------------------------------------------------------------


def words(data="digits", model="small", **options):
    given = ["record", "--model", f"nets.py:{model}", "--data", data, "-o", "a.rsm"]
    for name, value in options.items():
        given += [f"--{name.replace('_', '-')}", value]
    return given


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ({"seed": -1}, "found -1"),
        ({"seed": 2**64}, "found 18446744073709551616"),
        ({"seed": "x"}, "--seed"),
        ({"device": "gpu"}, "cpu, cuda, cuda:1 or mps; found 'gpu'"),
        ({"device": "cuda:99"}, "cannot be used here"),
        ({"block": 0}, "found 0"),
        ({"blocks": -1}, "found -1"),
        ({"buckets": -1}, "found -1"),
        ({"beta": "nan"}, "found nan"),
        ({"beta": -1}, r"found -1\.0"),
        ({"pool": "max"}, "'max'"),
        ({"target": "label"}, "'label'"),
        ({"layer": "relu"}, "'relu'"),
        ({"size": 0}, "--size"),
        ({"limit": -1}, "--limit"),
        ({"on_bad": "ignore"}, "'ignore'"),
        ({"data": "nets.py:double"}, "float64"),
        ({"model": "conv"}, r"\(1, 8, 8\)"),
        ({"weights": "nets.py"}, "cannot be read|no weights"),
        ({"weights": "."}, "no weights at"),
        ({"data": "gone.npz"}, "no data at 'gone.npz'"),
        ({"data": "gone.py:data"}, r"no file at gone\.py"),
    ],
    ids=str,
)
def test_options_of_the_command(refused, option, found):
    assert re.search(found, refused(*words(**option)))


@pytest.mark.parametrize("command_name", ["compare", "adaptation", "report", "info"])
def test_files_that_are_no_recordings(refused, folder, command_name):
    np.savez("b.rsm", x=np.ones(3))
    (folder / "empty.rsm").touch()
    for file in ("gone.rsm", "b.rsm", "nets.py", ".", "empty.rsm"):
        given = [file, file] if command_name == "compare" else [file]
        assert file in refused(command_name, *given)


def test_npz_files_that_cannot_be_data(refused, folder):
    whole = np.random.default_rng(0).normal(size=(60, 1, 8, 8))
    np.savez("whole.npz", x=whole)
    content = (folder / "whole.npz").read_bytes()
    (folder / "truncated.npz").write_bytes(content[: len(content) // 2])
    (folder / "damaged.npz").write_bytes(content[:200] + bytes(400) + content[600:])
    (folder / "empty.npz").touch()
    np.savez("strings.npz", x=np.full((60, 3), "a"))
    np.savez("objects.npz", x=np.full((60, 3), None))
    np.savez("nothing.npz")
    with zipfile.ZipFile("others.npz", "w") as archive:
        archive.writestr("x.txt", "hello")
    for name in ("truncated", "damaged", "empty", "strings", "objects", "nothing", "others"):
        assert f"{name}.npz" in refused(*words(f"{name}.npz"))
    assert "<U1" in refused(*words("strings.npz"))


def test_an_npz_of_another_machine_is_just_read(run):
    pixels = np.random.default_rng(0).normal(size=(60, 1, 8, 8))
    np.savez("turned.npz", x=pixels.astype(">f8"), y=np.arange(60, dtype=">i4") % 10)
    np.savez("plain.npz", x=pixels, y=np.array(["a", "b"] * 30))  # names of classes travel along
    prints = []
    for name in ("turned.npz", "plain.npz"):
        status, _, err = run(*words(name))
        assert status == 0, err
        prints.append(rs.load("a.rsm").data.fingerprint)
    assert prints[0] == prints[1]


def pictures(folder, count=60):
    from PIL import Image

    for i in range(count):
        path = folder / "photos" / str(i % 2) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (10, 12), (i, 2 * i, 3 * i)).save(path)
    return folder / "photos"


def bomb(path, side):
    """A small file that claims to be a large picture."""
    import struct
    import zlib

    def chunk(kind, content):
        crc = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + crc

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


@pytest.mark.parametrize("kind", ["bomb", "large", "truncated", "empty", "text", "link"])
def test_a_picture_that_cannot_be_read(refused, run, folder, kind):
    bad = pictures(folder) / "1" / "3.png"
    content = bad.read_bytes()
    bad.unlink()
    if kind in ("bomb", "large"):  # an error of Pillow's above twice its limit, a warning above it
        bomb(bad, {"bomb": 20_000, "large": 10_000}[kind])
    elif kind == "link":
        bad.symlink_to("nowhere.png")
    else:
        bad.write_bytes({"truncated": content[:-30], "empty": b"", "text": b"hello"}[kind])
    (folder / "photos" / "more.png").mkdir()  # a folder of such a name is none
    given = words("photos", "conv", size=8)
    assert "cannot read the image photos/1/3.png (" in refused(*given)
    status, out, err = run(*given, "--on-bad", "skip")
    assert (status, err) == (0, "")
    assert "59 samples (1 skipped)" in out


def test_a_folder_without_pictures(refused, folder):
    (folder / "photos" / "deep.png").mkdir(parents=True)
    (folder / "photos" / "notes.txt").touch()
    assert "no images below photos" in refused(*words("photos", "conv"))


def test_a_library_that_is_there_but_broken(folder):
    """In a process of its own, as imports stay; the library's own words are quoted in the line."""
    (folder / "timm").mkdir()
    (folder / "timm" / "__init__.py").write_text(
        textwrap.dedent("""
        def deep(n):
            if n == 0:
                raise RuntimeError("no operator\\nand more")
            deep(n - 1)
        deep(60)
        """)
    )
    given = ["layers", "--model", "timm:resnet18", "--data", "digits"]
    done = subprocess.run(
        [sys.executable, "-m", "resemblance", *given],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: this needs timm, which is installed but cannot be imported (no operator); install "
        f"a compatible version: {install_command('vision')} --force-reinstall\n"
    )


# -- numbers and words that others take, or refuse ------------------------------------------------


@pytest.mark.parametrize(
    "number", [np.int64(8), np.int32(8), np.uint8(8), torch.tensor(8)], ids=repr
)
@pytest.mark.parametrize("option", ["buckets", "block", "blocks", "max_dim", "batch_size"])
def test_whole_numbers_of_other_libraries_are_taken(option, number):
    found = rs.record(net(), X, **{option: number}, progress=False).settings
    assert found == rs.record(net(), X, **{option: 8}, progress=False).settings


def test_a_table_of_pandas_is_an_array():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X.numpy())
    assert rs.record(net().eval(), table).data == rs.record(net().eval(), X).data


def test_half_a_character_names_data_as_well_as_any():
    found = [rs.record(net().eval(), X, data_id=name).data for name in ("\ud800", "\ud801")]
    assert found[0].fingerprint != found[1].fingerprint


def test_masked_values_are_refused():
    x = np.ma.masked_array(X.numpy(), X.numpy() > 2.5)
    refused(lambda: rs.record(net(), x), "expected an array without masked values; fill them")
    refused(lambda: rs.record_arrays(x, data_id="x"), "expected an array without masked values")
    unmasked = np.ma.masked_array(X.numpy(), np.zeros(X.shape, bool))
    assert rs.record(net().eval(), unmasked).data == rs.record(net().eval(), X).data


SAID = {
    "a name that is a number": (lambda a, b, tmp: a.renamed(1), "name must be a string"),
    "a name of bytes": (lambda a, b, tmp: a.renamed(b"net"), "name must be a string; found b'net'"),
    "a task's name": (
        lambda a, b, tmp: rs.task2vec(net(), X, name=3),
        "`name` must be a non-empty string",
    ),
    "a title": (lambda a, b, tmp: rs.report([a, b], tmp / "r.html", title=3), "`title` must be"),
    "a level in words": (
        lambda a, b, tmp: rs.compare(a, b)["features"].interval("x"),
        "`level` must lie",
    ),
    "a list of levels": (
        lambda a, b, tmp: rs.compare(a, b)["features"].interval([0.9]),
        "`level` must lie",
    ),
    "a level of adaptation": (
        lambda a, b, tmp: rs.adaptation(a).interval("log_ratio", None),
        "`level` must lie",
    ),
    "a least fall in words": (
        lambda a, b, tmp: rs.compare(a, b, kernel="features").parting(least="x"),
        "`least` must be between 0 and 1",
    ),
    "indices in two rows": (
        lambda a, b, tmp: rs.CountSketch().assign([[1, 2]]),
        r"must be a list of them; found shape \(1, 2\)",
    ),
    "a path with a NUL": (lambda a, b, tmp: a.save(f"{tmp}/a\0b"), r"a\\x00b.*name another file"),
    "a path that cannot be spelt": (lambda a, b, tmp: a.save(f"{tmp}/\ud800"), "name another"),
    "an empty path": (lambda a, b, tmp: a.save(""), "found an empty one"),
}


@pytest.mark.parametrize(("call", "found"), SAID.values(), ids=SAID)
def test_words_and_numbers_that_cannot_be(call, found, tmp_path):
    a, b = (rs.record(net(), X, progress=False) for _ in "ab")
    refused(lambda: call(a, b, tmp_path), found)
    assert list(tmp_path.iterdir()) == []
