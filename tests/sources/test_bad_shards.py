"""Files that are not what they should be: one sentence that names the file, the row and the remedy."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noshadow import InputError, LastLayer, score
from noshadow.sources import flat, streamed
from tests.sources.test_layers_on_disk import arrays, cut, write


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """A dozen records at a time, so that there are several chunks."""
    monkeypatch.setattr(streamed, "CHUNK_BYTES", 12 * 48)


def shards(folder, kind="npy", named=None, number=8):
    named = arrays(n=80) if named is None else named
    folder.mkdir(exist_ok=True)
    return [write(folder / f"part-{k}", kind, *part) for k, part in enumerate(cut(named, range(10, 10 * number, 10)))]


@pytest.mark.parametrize("kind", ["npy", "safetensors", "parquet"])
@pytest.mark.parametrize(("name", "place"), [("features", 0), ("outputs", 1)])
def test_nan_in_a_late_shard_is_counted_over_all(tmp_path, kind, name, place):
    named = arrays(n=80)
    named[place][73, 1] = np.nan
    shards(tmp_path, kind, named)
    with pytest.raises(InputError, match=rf"{name}: NaN or infinite in row 73 \(counted from 0\)"):
        LastLayer.open(tmp_path)


def test_targets_and_weights_of_a_late_shard_are_counted_over_all(tmp_path):
    x, z, y = arrays(n=80)
    y[71] = 3
    shards(tmp_path, named=(x, z, y))
    with pytest.raises(InputError, match=r"targets: expected classes 0 … 2, got 3 in row 71"):
        LastLayer.open(tmp_path)
    y[71] = 0
    weight = np.ones(80)
    weight[72] = -1
    with pytest.raises(InputError, match=r"sample_weight: negative in row 72 "):
        LastLayer.open(cut((x, z, y, weight), range(10, 80, 10)))
    with pytest.raises(InputError, match="they are 0 for every record"):
        LastLayer.open(cut((x, z, y, 0 * weight), range(10, 80, 10)))
    LastLayer.open(cut((x, z, y, np.arange(80) // 79), range(10, 80, 10)))  # whole chunks may have no weight


@pytest.mark.parametrize("kind", ["npy", "safetensors", "parquet"])
def test_a_missing_shard(tmp_path, kind):
    paths = shards(tmp_path, kind)
    paths[3].rename(tmp_path / ".elsewhere")
    with pytest.raises(InputError, match=r"shard 3 is missing"):
        LastLayer.open(tmp_path)
    with pytest.raises(InputError, match=rf"{paths[3].name} does not exist"):
        LastLayer.open(paths)


@pytest.mark.parametrize("number", [0, 3, 7])
def test_a_shard_folder_without_arrays_is_refused_wherever_it_is(tmp_path, number):
    """A copy that was interrupted; at the end nothing comes after it that would show that it is missing."""
    shards(tmp_path)
    folder = sorted(tmp_path.iterdir())[number]
    for file in folder.iterdir():
        file.unlink()
    (folder / "targets.npy.tmp").touch()
    with pytest.raises(InputError, match=f"{folder.name} is named as a shard and holds no features.npy"):
        LastLayer.open(tmp_path)
    shutil.rmtree(folder)
    (tmp_path / "logs-2024").mkdir()  # named otherwise: none of them
    if number == 7:
        assert LastLayer.open(tmp_path).n == 70  # the last, without a trace: nobody can tell


def test_all_shards_but_one_are_folders_without_arrays(tmp_path):
    shards(tmp_path)
    for folder in sorted(tmp_path.iterdir())[1:]:
        for file in folder.iterdir():
            file.unlink()
    with pytest.raises(InputError, match="is named as a shard"):
        LastLayer.open(tmp_path)


def test_the_number_of_shards_in_their_names(tmp_path):
    for k, part in enumerate(cut(arrays(), [20, 40])):
        write(tmp_path / f"a-{k + 1:05d}-of-00004", "safetensors", *part)
    with pytest.raises(InputError, match=r"is one of 4 shards, but 3 are there"):
        LastLayer.open(tmp_path)
    write(tmp_path / "b-00001", "safetensors", *arrays())
    with pytest.raises(InputError, match=r"have the same number|is one of 4"):
        LastLayer.open(tmp_path)


def test_shards_that_do_not_tell_their_order(tmp_path):
    for name in ("alpha", "beta"):
        write(tmp_path / name, "parquet", *arrays())
    with pytest.raises(InputError, match=r"has no number in its name; pass a list of the shards in their order"):
        LastLayer.open(tmp_path)
    assert LastLayer.open([tmp_path / "beta.parquet", tmp_path / "alpha.parquet"]).n == 120
    (tmp_path / "late").mkdir()
    write(tmp_path / "late" / "5", "parquet", *arrays())
    write(tmp_path / "late" / "6", "parquet", *arrays())
    with pytest.raises(InputError, match=r"the first shard is number 5"):
        LastLayer.open(tmp_path / "late")
    (tmp_path / "second").mkdir()
    write(tmp_path / "second" / "2", "parquet", *arrays())
    write(tmp_path / "second" / "3", "parquet", *arrays())
    with pytest.raises(InputError, match=r"the first shard is number 2; those before it are missing"):
        LastLayer.open(tmp_path / "second")


def test_files_of_other_names_are_not_taken_for_shards_by_their_numbers(tmp_path):
    for name in ("train-0", "train-1", "held_out-2"):
        write(tmp_path / name, "parquet", *arrays())
    with pytest.raises(InputError, match=r"train-0\.parquet and held_out-2\.parquet differ in more than their numbers"):
        LastLayer.open(tmp_path)
    assert LastLayer.open([tmp_path / "train-0.parquet", tmp_path / "train-1.parquet"]).n == 120


@pytest.mark.parametrize(
    "names", [("epoch3-shard-0", "epoch2-shard-1"), ("epoch3-0-of-2", "epoch2-1-of-2"), ("2024-02-01", "2024-01-02")]
)
def test_shards_of_two_runs_are_not_taken_for_one_by_their_last_numbers(tmp_path, names):
    for name in names:
        write(tmp_path / name, "parquet", *arrays())
    first, second = (rf"{name}\.parquet" for name in names)
    with pytest.raises(InputError, match=rf"{first} and {second} differ in another number than that of the shard"):
        LastLayer.open(tmp_path)
    assert LastLayer.open([tmp_path / f"{name}.parquet" for name in names]).n == 120


def test_other_numbers_that_all_shards_share_are_no_order(tmp_path):
    for name in ("v2-epoch3-00", "v2-epoch03-1"):
        write(tmp_path / name, "parquet", *arrays())
    assert LastLayer.open(tmp_path).n == 120


def test_a_link_that_leads_nowhere_is_no_shard_that_is_left_out(tmp_path):
    folders = shards(tmp_path)
    (tmp_path / "part-8").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=r"part-8 is named as a shard and holds no features\.npy"):
        LastLayer.open(tmp_path)
    (tmp_path / "part-8").unlink()
    folders[-1].rename(tmp_path / "elsewhere")
    folders[-1].symlink_to(tmp_path / "elsewhere")
    assert LastLayer.open([*folders]).n == 80


def test_a_shard_that_is_still_being_copied_is_refused(tmp_path):
    last = shards(tmp_path, "parquet")[-1]
    (tmp_path / "part-0.parquet.crc").write_bytes(b"beside the shard that it is of")
    assert LastLayer.open(tmp_path).n == 80
    last.rename(tmp_path / "part-7.parquet.tmp")
    with pytest.raises(InputError, match=r"part-7\.parquet\.tmp is there and part-7\.parquet is not"):
        LastLayer.open(tmp_path)


def test_arrays_beside_shards_are_refused(tmp_path):
    shards(tmp_path)
    for name, values in zip(("features", "outputs", "targets"), arrays(n=5), strict=True):
        np.save(tmp_path / f"{name}.npy", values)
    with pytest.raises(InputError, match=r"holds both \.npy arrays and shards \(part-0\)"):
        LastLayer.open(tmp_path)


def test_shards_are_known_by_their_kind_in_capitals_too_and_folders_by_all_of_their_name(tmp_path):
    first, second = (write(tmp_path / f"part-{k}", "safetensors", *arrays(seed=k)) for k in (0, 1))
    second.rename(second.with_suffix(".SAFETENSORS"))
    assert LastLayer.open(tmp_path).n == 120
    for k in (0, 1, 2):
        write(tmp_path / "dotted" / f"part.{k}", "npy", *arrays()) if k else (tmp_path / "dotted").mkdir()
    assert LastLayer.open(tmp_path / "dotted").n == 120
    assert first.exists()


@pytest.mark.parametrize("name", ["sample_weights", "Sample_Weight", "sampleweight"])
def test_an_array_that_is_nearly_named_as_weights_is_not_left_out(tmp_path, name):
    folder = write(tmp_path / "layer", "npy", *arrays())
    np.save(folder / "ids.npy", np.arange(60))
    assert LastLayer.open(folder).n == 60
    np.save(folder / f"{name}.npy", np.ones(60))
    with pytest.raises(InputError, match=rf"{name}\.npy is not read; rename it to sample_weight\.npy"):
        LastLayer.open(folder)


@pytest.mark.parametrize("kind", ["npy", "safetensors", "parquet"])
def test_a_truncated_shard(tmp_path, kind):
    path = shards(tmp_path, kind)[7]
    path = path / "features.npy" if kind == "npy" else path
    content = path.read_bytes()
    reason = "is no Parquet file" if kind == "parquet" else "it is truncated|is not a"
    for size in (0, 5, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=reason):
            LastLayer.open(tmp_path)
    if kind != "parquet":
        path.write_bytes(content + b"\0")
        with pytest.raises(InputError, match="something was appended to it"):
            LastLayer.open(tmp_path)


def test_a_flipped_bit_in_parquet_pages_with_checksums(tmp_path):
    x, z, y = arrays()
    path = tmp_path / "a.parquet"
    table = pa.table({"features": list(x), "outputs": list(z), "targets": y})
    pq.write_table(table, path, write_page_checksum=True, compression="none")
    content = bytearray(path.read_bytes())
    place = content.find(x[30].tobytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="damaged"):
        LastLayer.open(path)


@pytest.mark.parametrize("kind", ["npy", "safetensors", "parquet"])
def test_shards_of_other_widths_types_and_columns(tmp_path, kind):
    x, z, y = arrays()
    first = write(tmp_path / "0", kind, x, z, y)
    cases = {
        r"'features' with 3 numbers of type float32 .* 'features' with 4 numbers": (x[:, :3], z, y),
        r"'features' with 4 numbers of type float64 .* float32": (x.astype(np.float64), z, y),
        r"'outputs' with 2 numbers": (x, z[:, :2], y),
        r"'targets' with a number of type int32 .* saved with arrays of one width and type": (x, z, y.astype(np.int32)),
        r"'sample_weight' with a number of type float64 per record, .* no 'sample_weight'": (x, z, y, np.ones(60)),
    }
    for k, (message, case) in enumerate(cases.items(), 1):
        with pytest.raises(InputError, match=message):
            LastLayer.open([first, write(tmp_path / f"{k}", kind, *case)])


def test_arrays_of_one_shard_with_other_numbers_of_rows(tmp_path):
    x, z, y = arrays()
    with pytest.raises(InputError, match=r"outputs has 59 rows, features 60"):
        LastLayer.open(write(tmp_path / "a", "npy", x, z[1:], y))
    with pytest.raises(InputError, match=r"targets has 61 rows, features 60"):
        LastLayer.open(write(tmp_path / "b", "safetensors", x, z, np.append(y, 0)))


def test_no_rows_no_arrays_no_numbers(tmp_path):
    x, z, y = arrays()
    for kind in ("npy", "safetensors", "parquet"):
        with pytest.raises(InputError, match="there are no rows"):
            LastLayer.open(write(tmp_path / f"none-{kind}", kind, x[:0], z[:0], y[:0]))
    with pytest.raises(InputError, match="there are no rows"):
        LastLayer.open([])
    folder = write(tmp_path / "two", "npy", x, z, y)
    (folder / "outputs.npy").unlink()
    with pytest.raises(InputError, match="there is no array 'outputs'"):
        LastLayer.open(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no shards"):
        LastLayer.open(tmp_path / "empty")
    with pytest.raises(InputError, match="does not exist"):
        LastLayer.open(tmp_path / "nowhere.parquet")
    with pytest.raises(InputError, match="'logits' is none of features"):
        LastLayer.open({"logits": tmp_path / "a.npy"})
    with pytest.raises(InputError, match="expected a path, a list of paths or chunks"):
        LastLayer.open(3)
    (tmp_path / "a.csv").write_text("a")
    with pytest.raises(InputError, match=r"must be a \.safetensors or \.parquet file"):
        LastLayer.open(tmp_path / "a.csv")


def test_npy_files_that_cannot_be_read_by_rows(tmp_path):
    x, z, y = arrays()
    folder = write(tmp_path / "a", "npy", np.asfortranarray(x), z, y)
    with pytest.raises(InputError, match="stored column by column"):
        LastLayer.open(folder)
    for values, message in {
        "big endian": (x.astype(">f4"), "holds features as >f4; save them as float32"),
        "complex": (x.astype(complex), "holds features as complex128"),
        "objects": (x.astype(object), "holds features as object"),
        "one": (np.float64(1), "holds one number"),
    }.values():
        np.save(folder / "features.npy", values, allow_pickle=True)
        with pytest.raises(InputError, match=message):
            LastLayer.open(folder)
    np.save(folder / "features.npy", x[:, :, None])
    with pytest.raises(InputError, match=r"features: expected shape \(n, p\), got \(60, 4, 1\)"):
        LastLayer.open(folder)


def test_parquet_columns_that_are_no_arrays(tmp_path):
    x, z, y = arrays()
    path = tmp_path / "a.parquet"
    ragged = [row[: 3 + (k != 9)] for k, row in enumerate(x)]
    nulls = [None if k == 31 else row for k, row in enumerate(x)]
    for values, message in (
        (ragged, r"lists of another length than 4 in row 9 "),
        (nulls, r"features is null in row 31 "),
        (["a"] * 60, r"holds string; it must hold numbers"),
        (list(np.full((60, 4), 2**63, dtype=np.uint64)), r"holds numbers from 2⁶³ on; save them as float64"),
    ):
        pq.write_table(pa.table({"features": values, "outputs": list(z), "targets": y}), path, row_group_size=20)
        with pytest.raises(InputError, match=message):
            LastLayer.open(path)


def test_a_safetensors_header_that_lies(tmp_path):
    path = write(tmp_path / "a", "safetensors", *arrays())
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for change in (
        {"shape": [10**9, 4]},
        {"data_offsets": [8, 968]},
        {"dtype": "F4"},
        {"data_offsets": [0]},
        {"shape": 3},
    ):
        text = json.dumps({**header, "features": {**header["features"], **change}}).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
        with pytest.raises(InputError, match=r"a\.safetensors"):
            LastLayer.open(path)
    path.write_bytes((2**60).to_bytes(8, "little") + content[8:])
    with pytest.raises(InputError, match="its header is longer than the file"):
        LastLayer.open(path)


@pytest.mark.parametrize("kind", ["npy", "safetensors", "parquet"])
def test_a_shard_that_changes_or_goes_after_it_was_opened(tmp_path, kind):
    named = arrays(n=80)
    paths = shards(tmp_path, kind, named)
    layer = LastLayer.open(tmp_path)
    file = paths[7] / "outputs.npy" if kind == "npy" else paths[7]
    content = file.read_bytes()
    file.write_bytes(content[:-8])
    with pytest.raises(InputError, match="was written to since the layer was opened"):
        score(layer)
    file.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        score(layer)


def flip(path, place, bit):
    """One bit of a file, by the hand of a failing disk: size and time stay what they are."""
    times, content = path.stat(), bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(bytes(content))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("kind", ["npy", "safetensors", "parquet"])
def test_a_bit_that_flips_between_passes_is_noticed(tmp_path, kind, monkeypatch):
    """In an array with no checksum of its own, where the number that it makes is as good as any."""
    monkeypatch.setattr(flat, "_PIECE_BYTES", 5 * 16)
    x, z, y = arrays(n=80)
    paths = shards(tmp_path, kind, (x, z, y))
    layer = LastLayer.open(tmp_path)
    before = score(layer)
    file = paths[7] / "features.npy" if kind == "npy" else paths[7]
    place = file.read_bytes().find(x[76].tobytes())
    assert place > 0
    flip(file, place + 1, 3)
    with pytest.raises(InputError, match=r"are not what they were when they were first read") as found:
        score(layer)
    assert file.name in str(found.value)
    if kind != "parquet":  # rows of that shard, in pieces of five
        assert "rows 5 … 9 (counted from 0)" in str(found.value)
    assert LastLayer.open(tmp_path).n == 80  # nobody can tell it from a number that was always so
    flip(file, place + 1, 3)
    pd.testing.assert_frame_equal(score(layer), before, check_exact=True)


@pytest.mark.parametrize("kind", ["npy", "safetensors", "parquet"])
def test_a_bit_that_flips_is_noticed_whatever_rows_are_asked_for(tmp_path, kind, monkeypatch):
    """A first pass over other chunks than those of the next has taken the same checksums."""
    monkeypatch.setattr(flat, "_PIECE_BYTES", 5 * 16)
    x, z, y = arrays(n=80)
    file = shards(tmp_path, kind, (x, z, y))[7]
    layer = LastLayer.open(tmp_path)
    file = file / "features.npy" if kind == "npy" else file
    flip(file, file.read_bytes().find(x[78].tobytes()) + 1, 3)
    for rows in (slice(76, 79), slice(78, 79), slice(74, 80)):
        with pytest.raises(InputError, match=r"are not what they were when they were first read"):
            layer.records(rows)


def test_a_bit_that_flips_between_runs_is_noticed_by_a_store(tmp_path):
    x, z, y = arrays(n=80)
    paths = shards(tmp_path / "layer", "npy", (x, z, y))
    score(LastLayer.open(tmp_path / "layer"), store=tmp_path / "store")
    flip(paths[3] / "features.npy", -6, 0)
    with pytest.raises(InputError, match="is of a run with other records"):
        score(LastLayer.open(tmp_path / "layer"), store=tmp_path / "store")


def test_rows_are_read_alike_whatever_the_pieces(tmp_path, monkeypatch):
    x, z, y = arrays(n=80)
    path = write(tmp_path / "a", "npy", x, z, y)
    for piece in (1, 5 * 16, 10**9):
        monkeypatch.setattr(flat, "_PIECE_BYTES", piece)
        array = flat.npy_array(path / "features.npy", "features")
        for rows in (slice(0, 80), slice(3, 4), slice(7, 23), slice(79, 80), slice(5, 5)):
            np.testing.assert_array_equal(array.read(rows).numpy(), x[rows])


def test_chunks_must_come_again():
    named = arrays()

    class Shuffled:
        def __init__(self):
            self.passes = 0

        def __iter__(self):
            self.passes += 1
            parts = cut(named, range(10, 60, 10))
            return iter(parts if self.passes <= self.good else parts[::-1] if self.turned else parts[:-1])

    with pytest.raises(InputError, match="a generator can be read once"):
        LastLayer.open(part for part in cut(named, [30]))
    Shuffled.good, Shuffled.turned = 4, True
    layer = LastLayer.open(Shuffled())
    with pytest.raises(InputError, match=r"chunk 0 \(counted from 0\) is not what it was in the first pass"):
        score(layer), score(layer)
    Shuffled.turned = False
    layer = LastLayer.open(Shuffled())
    with pytest.raises(InputError, match="the source gave 5 chunks, and 6 in the first pass"):
        score(layer), score(layer)


def test_chunks_that_are_none():
    x, z, y = arrays()
    with pytest.raises(InputError, match=r"chunk 0 is not \(features, outputs, targets\)"):
        LastLayer.open([(x, z)])
    with pytest.raises(InputError, match=r"chunk 1 has 59 rows of outputs and 60 of features"):
        LastLayer.open([(x, z, y), (x, z[1:], y)])
    with pytest.raises(InputError, match=r"chunk 1 has features with 3 numbers"):
        LastLayer.open([(x, z, y), (x[:, 1:], z, y)])
    with pytest.raises(InputError, match=r"sample_weight: .* has its own"):
        LastLayer.open([(x, z, y, np.ones(60))], sample_weight=np.ones(60))
    with pytest.raises(InputError, match=r"sample_weight: expected a weight per record, shape \(60,\), got \(59,\)"):
        LastLayer.open([(x, z, y)], sample_weight=np.ones(59))
