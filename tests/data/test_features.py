"""Frozen features: cached by what they depend on, and of each record alone, to the bit."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sweeper.checks import FieldError, RequestError
from sweeper.data import efficientnet, features, minilm, texts
from sweeper.data.fashion_mnist import FashionMnist, read_table
from sweeper.spec.codec import spec_to_dict

# A text network needs the extra `text`, which the extra `test` installs.
BERT = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "free", "prize", "call", "now", "hello", "dear", "friend", "win"]


def test_features_are_computed_once_for_the_same_records(tmp_path):
    computed: list[int] = []

    def compute() -> np.ndarray:
        computed.append(1)
        return np.full((2, 3), len(computed), np.float32)

    def ask(*key: bytes) -> np.ndarray:
        return features.cached(str(tmp_path), "net", key, (2, 3), compute)

    assert ask(b"weights", b"a", b"b")[0, 0] == ask(b"weights", b"a", b"b")[0, 0] == 1
    assert ask(b"weights", b"b", b"a")[0, 0] == 2  # another order
    assert ask(b"other", b"a", b"b")[0, 0] == 3  # other weights
    assert ask(b"weights", b"ab", b"")[0, 0] == 4  # another boundary
    files = sorted(Path(tmp_path, "features").iterdir())
    assert len(files) == 4
    for file in files:
        assert file.name.startswith("net-")
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
        file.write_bytes(file.read_bytes()[:-5])  # a full disk
    assert ask(b"weights", b"a", b"b")[0, 0] == 5
    assert ask(b"weights", b"a", b"b")[0, 0] == 5


def test_features_of_another_shape_are_refused_and_not_kept(tmp_path):
    with pytest.raises(RequestError, match="fetch its weights again"):
        features.cached(str(tmp_path), "net", [b"x"], (2, 3), lambda: np.zeros((2, 4), np.float32))
    assert not (tmp_path / "features").exists()


def test_nothing_half_written_stays_when_writing_fails(tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="no space"):
        features.cached(str(tmp_path), "net", [b"x"], (1, 1), lambda: np.zeros((1, 1), np.float32))
    assert list((tmp_path / "features").iterdir()) == []


def test_a_record_is_in_the_smallest_width_that_holds_it():
    found = list(features.buckets([2, 16, 17, 3, 64], (16, 32, 64), 2))
    assert found == [(16, [0, 1]), (16, [3]), (32, [2]), (64, [4])]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """A small random network of the same kind, in the same three files: config, weights, tokenizer."""
    pytest.importorskip("transformers", reason="the extra text is not installed: pip install 'sweeper[text]'")
    import safetensors.torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(3)
    network = BertModel(BertConfig(**BERT)).eval()
    network.config.to_json_file(folder / "config.json")
    safetensors.torch.save_file(network.state_dict(), folder / "model.safetensors")
    tokenizer = Tokenizer(models.WordPiece({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.enable_padding(length=128)  # as the published file asks for, and as features must not depend on
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder / "config.json"), str(folder / "model.safetensors"), str(folder / "tokenizer.json")


def sentences(count: int) -> list[str]:
    draw = np.random.default_rng(5)
    return ["", *(" ".join(draw.choice(WORDS[4:], size=draw.integers(1, 60))) for _ in range(count - 1))]


def test_a_texts_features_are_the_mean_of_its_tokens_at_unit_norm(small):
    """Against one text at a time, by hand: no batch, no filling up, no mask."""
    from transformers import BertConfig, BertModel

    found = minilm.encode(["Hello dear friend", "WIN a prize now"], *small)
    torch.manual_seed(3)
    network = BertModel(BertConfig(**BERT)).eval()
    for row, ids in enumerate([[2, 8, 9, 10, 3], [2, 11, 1, 5, 7, 3]]):
        with torch.no_grad():
            mean = network(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(found[row], (mean / mean.norm()).numpy(), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_a_texts_features_do_not_depend_on_the_other_texts(small):
    every = sentences(90)
    found = minilm.encode(every, *small)
    for place in (0, 1, 17, 89):
        np.testing.assert_array_equal(minilm.encode([every[place]], *small)[0], found[place])
    np.testing.assert_array_equal(minilm.encode(every[::-1], *small)[::-1], found)
    changed = [*every[:40], "call now", *every[41:]]
    others = np.arange(90) != 40
    np.testing.assert_array_equal(minilm.encode(changed, *small)[others], found[others])
    assert (minilm.encode(changed, *small)[40] != found[40]).any()


def test_a_long_text_is_cut(small):
    long = " ".join(["prize"] * 254)
    np.testing.assert_array_equal(minilm.encode([long], *small), minilm.encode([long + " hello friend"], *small))


def test_texts_have_the_features_of_the_published_encoder(data_cache):
    """The numbers are those of transformers alone, both texts filled up to one length."""
    pytest.importorskip("transformers", reason="the extra text is not installed: pip install 'sweeper[text]'")
    minilm.WEIGHTS.fetch(data_cache)
    found = minilm.encode(["hello world", "a longer text than that"], *minilm.WEIGHTS.paths(data_cache))
    np.testing.assert_allclose(found[0, :4], [-0.0345, 0.0310, 0.0067, 0.0261], atol=1e-4)
    np.testing.assert_allclose(found[1, :4], [0.0145, 0.1213, 0.0238, -0.0232], atol=1e-4)
    assert float(found[0] @ found[1]) == pytest.approx(0.2307, abs=1e-4)


def test_a_record_without_text_is_a_null_record(monkeypatch):
    monkeypatch.setattr(minilm, "text_features", lambda words, cache: np.ones((len(words), 384), np.float32))
    table = texts.table_of_texts([("a", 1), None, ("", 0)], "")
    assert table.valid.tolist() == [True, False, True]
    assert table.labels.tolist() == [1, 0, 0]
    assert table.features.sum(axis=1).tolist() == [384, 0, 384]


def test_a_missing_library_is_named_with_the_extra():
    error = features.missing_extra("text", ImportError("no", name="transformers"))
    assert str(error) == "this source needs transformers: pip install 'sweeper[text]'"


# EfficientNet-Lite0. The numbers were made with the package efficientnet-lite-pytorch 0.1.0, the network's other implementation.

ROWS, COLUMNS = np.mgrid[:28, :28]
DRAWN = np.stack(
    [
        (ROWS * 9) % 256,
        (ROWS * ROWS + 7 * COLUMNS) % 256,
        np.full((28, 28), 200),
        ((ROWS - 14) ** 2 + (COLUMNS - 14) ** 2 < 80) * 255,
    ]
).astype(np.uint8)[:, None]
SUMS = [86.70874, 814.5946, 8.663519, 457.93787]
THIRD = [2.2846327, 0.0, 0.0, 5.383832]  # the third of the 1,280


@pytest.fixture(scope="session")
def weights(data_cache: str) -> str:
    return efficientnet.WEIGHTS.fetch(data_cache)[0]


def test_pictures_have_the_features_of_the_published_network(weights):
    found = efficientnet.encode(DRAWN, weights)
    np.testing.assert_allclose(found.sum(axis=1, dtype=np.float64), SUMS, rtol=1e-4)
    np.testing.assert_allclose(found[:, 2], THIRD, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(efficientnet.encode(DRAWN.repeat(3, axis=1), weights), found)  # grey is grey


def test_a_pictures_features_do_not_depend_on_the_other_pictures(weights):
    found = efficientnet.encode(DRAWN, weights)
    np.testing.assert_array_equal(efficientnet.encode(DRAWN[::-1].copy(), weights)[::-1], found)
    np.testing.assert_array_equal(efficientnet.encode(DRAWN[2:3], weights)[0], found[2])


def test_fashion_mnist_may_be_features_in_place_of_pixels(monkeypatch, tmp_path):
    from tiny_sweeps import tiny

    from sweeper.catalog import sweep_from_dict

    source = FashionMnist(features="efficientnet-lite0")
    assert (source.description.features, source.pixels) == (1_280, False)
    assert (FashionMnist().description.features, FashionMnist().pixels) == (784, True)
    section = {"source": {"kind": "fashion-mnist", "features": "efficientnet-lite0"}, "public": True}
    spec = sweep_from_dict(tiny(data=section, model={"kind": "softmax"}))
    assert spec.data.source == source
    assert sweep_from_dict(spec_to_dict(spec)) == spec
    with pytest.raises(FieldError, match="did you mean efficientnet-lite0"):
        FashionMnist(features="efficientnet-lite")

    seen: list[np.ndarray] = []

    def instead(pictures: np.ndarray, cache: str) -> np.ndarray:
        seen.append(pictures)
        return np.ones((len(pictures), 1_280), np.float32)

    monkeypatch.setattr(efficientnet, "picture_features", instead)
    contents = [b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (4, 28, 28)) + DRAWN.tobytes()]
    contents.append(b"\0\0\x08\x01" + (4).to_bytes(4, "big") + bytes([0, 9, 10, 3]))
    table = read_table(contents, rows=(4,), cache=str(tmp_path))
    np.testing.assert_array_equal(seen[0], DRAWN)
    assert table.valid.tolist() == [True, True, False, True]
    assert table.features.sum(axis=1).tolist() == [1280, 1280, 0, 1280]
