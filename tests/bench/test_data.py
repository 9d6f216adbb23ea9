"""Data sets of the benchmark: the folder, the cache, the public source (here a server on this machine)."""

from __future__ import annotations

import gzip
import hashlib
import io
import ssl
import subprocess
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pandas as pd
import pytest
import typer

from noshadow.bench import data, download
from noshadow.bench.data import DATA_SETS, load_arrays
from noshadow.bench.download import DownloadError
from noshadow.bench.source import DataSource
from noshadow.commands.output import COULD_NOT, explained_errors
from noshadow.errors import FileError, InputError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
CLASSES = RNG.integers(0, 10, 12, dtype=np.uint8)
PUBLISHED = dict(DATA_SETS)


# --- archives in the public formats -----------------------------------------------------------------------------------


def tar_of(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def npz_of(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def cifar_records(images, *labels):
    """Label bytes, then the red, green and blue planes, row by row."""
    return b"".join(
        bytes(own) + image.transpose(2, 0, 1).tobytes() for *own, image in zip(*labels, images, strict=True)
    )


def california():
    rows = (
        "-122.230000,37.880000,41.000000,880.000000,129.000000,322.000000,126.000000,8.325200,452600.000000\n"
        "-122.220000,37.860000,21.000000,7099.000000,1106.000000,2401.000000,1138.000000,8.301400,358500.000000\n"
    )
    return tar_of({"CaliforniaHousing/cal_housing.data": rows.encode(), "CaliforniaHousing/cal_housing.domain": b"x"})


def energy():
    steps = np.linspace(0.0, 1.0, 768)
    columns = {name: least + (most - least) * steps for name, (least, most) in data.ENERGY_RANGES.items()}
    return pd.DataFrame(columns).round(6).to_csv(index=False).encode()


def cifar10():
    batches = {f"cifar-10-batches-bin/data_batch_{b + 1}.bin": slice(2 * b, 2 * b + 2) for b in range(5)}
    batches["cifar-10-batches-bin/test_batch.bin"] = slice(10, 12)
    return tar_of({name: cifar_records(IMAGES[rows], CLASSES[rows]) for name, rows in batches.items()})


def cifar100():
    coarse = np.full(12, 7, dtype=np.uint8)
    parts = {"cifar-100-binary/test.bin": slice(10, 12), "cifar-100-binary/train.bin": slice(0, 10)}
    return tar_of({name: cifar_records(IMAGES[rows], coarse[rows], CLASSES[rows]) for name, rows in parts.items()})


def bloodmnist():
    return npz_of(
        train_images=IMAGES[:, :28, :28],
        train_labels=CLASSES[:, None],
        test_images=IMAGES[:2, :28, :28],
        test_labels=CLASSES[:2, None],
    )


SENTENCES = 'sentence\tlabel\na "quoted start \t0\nNA\t1\nnull and void \t1\n'


def sst2():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("SST-2/dev.tsv", "sentence\tlabel\nother\t0\n")
        archive.writestr("SST-2/train.tsv", SENTENCES)
    return buffer.getvalue()


PUBLIC = {
    "california_housing": (california, 2),
    "energy_efficiency": (energy, 768),
    "cifar10": (cifar10, 10),
    "cifar100": (cifar100, 10),
    "bloodmnist": (bloodmnist, 12),
    "sst2": (sst2, 3),
}


# --- a public source on this machine ----------------------------------------------------------------------------------


class Publisher:
    """Serves ``files``; ``moved``: where else to ask; ``cut``: the most bytes of each of the next answers.

    ``ranges``: parts on request; ``context``: over https.
    """

    def __init__(self, context=None):
        self.files, self.asked, self.cut, self.ranges, self.moved = {}, [], [], True, {}
        publisher = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                publisher.answer(self)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.address = f"https://localhost:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def answer(self, request):
        wanted = request.headers.get("Range")
        self.asked.append((request.path, wanted))
        if request.path in self.moved:
            request.send_response(302)
            request.send_header("Location", self.moved[request.path])
            request.end_headers()
            return
        if request.path not in self.files:
            request.send_error(404)
            return
        content = self.files[request.path]
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        request.wfile.write(content[start:][: self.cut.pop(0) if self.cut else None])

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def publisher(monkeypatch):
    """All six data sets in small, at the addresses that ``DATA_SETS`` names."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    served = Publisher()
    for name, (make, records) in PUBLIC.items():
        content = make()
        served.files[f"/{name}"] = content
        *parts, whole = DATA_SETS[name].files
        digest = hashlib.sha256(content).hexdigest()
        files = (*(replace(part, records=4) for part in parts), replace(whole, records=records, digest=digest))
        here = {"url": f"{served.address}/{name}", "files": files, "size": max(len(content), DATA_SETS[name].size)}
        monkeypatch.setitem(DATA_SETS, name, replace(DATA_SETS[name], **here))
    yield served
    served.close()


def names_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# --- the public source ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLIC)
def test_fetched_once_and_then_read_from_the_cache(publisher, tmp_path, name):
    records = PUBLIC[name][1]
    first = load_arrays(name, None, tmp_path, records)
    again = load_arrays(name, None, tmp_path, records)
    assert publisher.asked == [(f"/{name}", None)]
    assert names_in(tmp_path) == [DATA_SETS[name].files[-1].name]
    assert list(first) == list(again)
    for key in first:
        np.testing.assert_array_equal(first[key], again[key])
    assert len(first[DATA_SETS[name].rows]) == records


def test_california_has_the_columns_of_scikit_learn(publisher, tmp_path):
    arrays = load_arrays("california_housing", None, tmp_path)
    expected = [8.3252, 41.0, 880 / 126, 129 / 126, 322.0, 322 / 126, 37.88, -122.23]
    assert arrays["feature_names"].tolist()[:3] == ["MedInc", "HouseAge", "AveRooms"]
    assert arrays["X"].dtype == np.float64
    np.testing.assert_array_equal(arrays["X"][0], expected)
    np.testing.assert_array_equal(arrays["y"], [4.526, 3.585])


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_images_and_classes(publisher, tmp_path, name):
    arrays = load_arrays(name, None, tmp_path)
    np.testing.assert_array_equal(arrays["x_train"], IMAGES[:10])
    np.testing.assert_array_equal(arrays["y_train"], CLASSES[:10])
    np.testing.assert_array_equal(arrays["x_test"], IMAGES[10:])
    np.testing.assert_array_equal(arrays["y_test"], CLASSES[10:])
    assert arrays["x_train"].dtype == arrays["y_train"].dtype == np.uint8


def test_bloodmnist_training_images(publisher, tmp_path):
    arrays = load_arrays("bloodmnist", None, tmp_path)
    np.testing.assert_array_equal(arrays["x"], IMAGES[:, :28, :28])
    np.testing.assert_array_equal(arrays["y"], CLASSES)


def test_sst2_sentences_are_taken_literally(publisher, tmp_path):
    arrays = load_arrays("sst2", None, tmp_path)
    assert arrays["sentence"].tolist() == ['a "quoted start ', "NA", "null and void "]
    assert arrays["sentence"].dtype == object
    assert arrays["label"].tolist() == [0, 1, 1]


def test_energy_in_another_form_is_checked_by_its_content(publisher, tmp_path, monkeypatch):
    path = tmp_path / "energy_efficiency.csv"
    monkeypatch.setitem(DATA_SETS, "energy_efficiency", PUBLISHED["energy_efficiency"])
    path.write_bytes(energy())
    arrays = load_arrays("energy_efficiency", tmp_path, tmp_path)
    assert arrays["X"].shape == (768, 8)
    assert (arrays["y"].min(), arrays["y"].max()) == (6.01, 43.1)
    path.write_bytes(energy().replace(b"43.1,", b"53.1,"))
    with pytest.raises(InputError, match=r"csv cannot be read as UCI Energy .*: Y1 goes from 6.01 to 53.1"):
        load_arrays("energy_efficiency", tmp_path, tmp_path)
    path.write_bytes(b"<html>down for maintenance</html>")
    with pytest.raises(InputError, match="expected 768 rows of X1, X2"):
        load_arrays("energy_efficiency", tmp_path, tmp_path)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_changed_file_is_refused_and_leaves_nothing(publisher, tmp_path, name):
    content = publisher.files[f"/{name}"]
    publisher.files[f"/{name}"] = content[:-1] + bytes([content[-1] ^ 1])
    found, expected = hashlib.sha256(publisher.files[f"/{name}"]).hexdigest(), DATA_SETS[name].files[-1].digest
    with pytest.raises(FileError, match=f"SHA-256 is {found}, expected {expected}"):
        load_arrays(name, None, tmp_path)
    assert names_in(tmp_path) == []


def test_published_digests_have_the_form_that_is_checked():
    for one in DATA_SETS.values():
        assert one.url.startswith("https://")
        assert len(bytes.fromhex(one.files[-1].digest)) == 32  # a SHA-256, of every one
        assert 30_000 < one.size < 2**28


def test_a_broken_transfer_goes_on_where_it_stopped(publisher, tmp_path):
    publisher.cut = [1000, 2000]
    arrays = load_arrays("cifar10", None, tmp_path)
    np.testing.assert_array_equal(arrays["y_train"], CLASSES[:10])
    assert [wanted for _, wanted in publisher.asked] == [None, "bytes=1000-", "bytes=3000-"]


def test_a_source_without_parts_starts_over(publisher, tmp_path):
    publisher.cut, publisher.ranges = [1000], False
    arrays = load_arrays("cifar10", None, tmp_path)
    np.testing.assert_array_equal(arrays["x_test"], IMAGES[10:])
    assert len(publisher.asked) == 2


def test_a_transfer_that_stays_broken_is_given_up_and_leaves_nothing(publisher, tmp_path):
    publisher.cut = [1000] + [0] * 10
    with pytest.raises(InputError, match=r"/cifar10: the connection ended [\d,]+ bytes early"):
        load_arrays("cifar10", None, tmp_path)
    assert len(publisher.asked) == 2
    assert names_in(tmp_path) == []
    publisher.cut = []
    assert len(load_arrays("cifar10", None, tmp_path)["y_train"]) == 10


def test_a_silent_source_times_out(publisher, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    stop = threading.Event()
    monkeypatch.setattr(publisher, "answer", lambda request: stop.wait(10))
    try:
        with pytest.raises(InputError, match="timed out"):
            load_arrays("sst2", None, tmp_path)
    finally:
        stop.set()
    assert names_in(tmp_path) == []


def test_more_than_was_published_is_cut_off(publisher, tmp_path, monkeypatch):
    small = replace(DATA_SETS["cifar10"], size=1000)
    monkeypatch.setitem(DATA_SETS, "cifar10", small)
    with pytest.raises(FileError, match=r"it announces [\d,]+ bytes, the published file has at most 1,000"):
        load_arrays("cifar10", None, tmp_path)
    sent = []

    def without_end(request):
        """No length, and more and more of it."""
        request.send_response(200)
        request.end_headers()
        while len(sent) < 1000:
            request.wfile.write(bytes(2**16))
            sent.append(2**16)

    monkeypatch.setattr(publisher, "answer", without_end)
    with pytest.raises(FileError, match="it sends more than the 1,000 bytes"):
        load_arrays("cifar10", None, tmp_path)
    assert len(sent) < 1000  # it noticed that nobody listens
    assert names_in(tmp_path) == []


@pytest.fixture
def https(publisher, tmp_path_factory, monkeypatch):
    """The same publisher behind https, with a certificate of this machine's own that is trusted here."""
    folder = tmp_path_factory.mktemp("https")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    subprocess.run([*make.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "certificate.pem"))
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    secure = Publisher(context)
    secure.files = publisher.files
    yield secure
    secure.close()


@pytest.mark.parametrize("steps", [1, 2])
def test_a_redirect_out_of_https_is_refused(publisher, https, tmp_path, monkeypatch, steps):
    monkeypatch.setitem(DATA_SETS, "sst2", replace(DATA_SETS["sst2"], url=f"{https.address}/first"))
    https.moved = {"/first": f"{https.address}/second", "/second": f"{publisher.address}/sst2"}
    if steps == 1:
        https.moved["/first"] = https.moved.pop("/second")
    with pytest.raises(FileError, match=r"/first leads to http://127.*/sst2, which is not https; nothing is fetched"):
        load_arrays("sst2", None, tmp_path)
    assert publisher.asked == []
    https.moved = {"/first": f"{https.address}/sst2"}  # within https it is followed
    assert len(load_arrays("sst2", None, tmp_path)["label"]) == 3


def test_plain_http_is_for_this_machine(publisher, tmp_path, monkeypatch):
    for address in ("http://example.org/a", "ftp://example.org/a", "file:///etc/passwd"):
        with pytest.raises(DownloadError, match="is not https"):
            download.download(address, tmp_path / "a", "a", 100)
    publisher.moved = {"/sst2": "http://example.org/a"}
    with pytest.raises(FileError, match=r"leads to http://example\.org/a, which is not https"):
        load_arrays("sst2", None, tmp_path)


def test_progress_in_bytes(publisher, tmp_path, capsys, monkeypatch):
    load_arrays("bloodmnist", None, tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes it a terminal
    source = DataSource(None, tmp_path / "shown", progress=True)
    source.arrays("bloodmnist", 12)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "BloodMNIST" in shown.err
    assert "kB" in shown.err


# --- without the public source ----------------------------------------------------------------------------------------


def test_offline_the_message_says_what_to_put_where(publisher, tmp_path):
    publisher.close()
    with pytest.raises(InputError) as caught:
        load_arrays("cifar10", None, tmp_path, 3)
    message = str(caught.value)
    assert "no file with 3 records of CIFAR-10 is on this machine" in message
    assert "refused" in message
    assert "cifar10_10k.npz or cifar-10-binary.tar.gz" in message
    assert "--data or NOSHADOW_DATA (none was given)" in message
    assert str(tmp_path / "data") in message
    assert f"{publisher.address}/cifar10" in message
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match=r"Put cifar-10-binary\.tar\.gz into .* \(now .*mine\)"):
        load_arrays("cifar10", tmp_path / "mine", tmp_path, 10)


def test_a_source_that_says_no_is_asked_once(publisher, tmp_path):
    del publisher.files["/sst2"]
    with pytest.raises(InputError, match="/sst2: 404 Not Found"):
        load_arrays("sst2", None, tmp_path)
    assert len(publisher.asked) == 1


def test_a_command_ends_with_exit_code_3(publisher, tmp_path, capsys):
    publisher.files.clear()
    with pytest.raises(typer.Exit) as caught, explained_errors():
        load_arrays("sst2", None, tmp_path)
    assert caught.value.exit_code == COULD_NOT
    assert "SST-2.zip" in capsys.readouterr().err.replace("\n", "")


# --- the folder -------------------------------------------------------------------------------------------------------


def part_of_cifar(count):
    return npz_of(x_train=IMAGES[:count], y_train=CLASSES[:count], x_test=IMAGES[10:], y_test=CLASSES[10:])


def test_the_folder_comes_before_the_cache(publisher, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    load_arrays("cifar10", None, tmp_path)
    (folder / "cifar10_10k.npz").write_bytes(part_of_cifar(4))
    assert len(load_arrays("cifar10", folder, tmp_path, 4)["y_train"]) == 4
    assert len(load_arrays("cifar10", None, tmp_path, 4)["y_train"]) == 10
    assert len(publisher.asked) == 1


def test_a_part_serves_only_what_it_holds(publisher, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "cifar10_10k.npz").write_bytes(part_of_cifar(4))
    assert len(load_arrays("cifar10", folder, tmp_path, 5)["y_train"]) == 10
    assert publisher.asked == [("/cifar10", None)]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_file_in_the_folder_or_put_into_the_cache_by_hand(publisher, tmp_path, name):
    for folder in (tmp_path / "mine", tmp_path / "cache" / "data"):
        folder.mkdir(parents=True)
        (folder / DATA_SETS[name].files[-1].name).write_bytes(publisher.files[f"/{name}"])
    used = load_arrays(name, tmp_path / "mine", tmp_path / "empty")
    assert len(used[DATA_SETS[name].rows]) == PUBLIC[name][1]
    load_arrays(name, None, tmp_path / "cache")
    assert publisher.asked == []


def test_local_files(publisher, tmp_path):
    x, y = np.arange(16.0).reshape(2, 8), np.array([1.5, 2.5])
    (tmp_path / "california_housing.npz").write_bytes(npz_of(X=x, y=y, feature_names=np.array(["MedInc"])))
    (tmp_path / "bloodmnist_train.npz").write_bytes(npz_of(x=IMAGES[:4, :28, :28], y=CLASSES[:4]))
    (tmp_path / "sst2_train.tsv.gz").write_bytes(gzip.compress(SENTENCES.encode()))
    arrays = load_arrays("california_housing", tmp_path, tmp_path)
    np.testing.assert_array_equal(arrays["X"], x)
    np.testing.assert_array_equal(load_arrays("bloodmnist", tmp_path, tmp_path)["y"], CLASSES[:4])
    assert load_arrays("sst2", tmp_path, tmp_path)["sentence"].tolist()[1] == "NA"
    assert publisher.asked == []


def test_a_damaged_file_in_the_folder_is_named(publisher, tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(cifar10()[:-20])
    with pytest.raises(
        InputError, match=r"binary\.tar\.gz is not the published file: its SHA-256 is \w{64}, expected \w{64}"
    ):
        load_arrays("cifar10", tmp_path, tmp_path)
    (tmp_path / "sst2_train.tsv.gz").write_bytes(gzip.compress(SENTENCES.encode())[:-12])
    with pytest.raises(InputError, match=r"sst2_train\.tsv\.gz cannot be read as SST-2"):
        load_arrays("sst2", tmp_path, tmp_path)
    (tmp_path / "bloodmnist_train.npz").write_bytes(npz_of(x=IMAGES))
    with pytest.raises(InputError, match="cannot be read as BloodMNIST: it holds x but no y"):
        load_arrays("bloodmnist", tmp_path, tmp_path)
    assert publisher.asked == []


def test_pickles_are_not_opened(publisher, tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object))
    (tmp_path / "objects.npy").rename(tmp_path / "california_housing.npz")
    with pytest.raises(InputError, match="cannot be read as California Housing"):
        load_arrays("california_housing", tmp_path, tmp_path)


def test_more_records_than_there_are(publisher, tmp_path):
    with pytest.raises(InputError, match="pool: 11 records are asked for, CIFAR-10 has 10"):
        load_arrays("cifar10", None, tmp_path, 11)
    (tmp_path / "cifar10_10k.npz").write_bytes(part_of_cifar(2))
    with pytest.raises(InputError, match=r"pool: 3 records are asked for, .*cifar10_10k\.npz has 2"):
        load_arrays("cifar10", tmp_path, tmp_path, 3)
    assert publisher.asked == []


def test_names_and_folders_that_are_not_there(publisher, tmp_path):
    with pytest.raises(InputError, match="'mnist' is not one of california_housing, "):
        load_arrays("mnist", None, tmp_path)
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        load_arrays("sst2", tmp_path / "nowhere", tmp_path)
    assert publisher.asked == []
