"""The 2,048-token vocabulary: how it is trained, loaded and applied to documents.

In: texts to train on; documents to encode. Out: tokenizer.json; ids with a target mask.
Does not know: what the texts say.
"""

import argparse
import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .corpus import mixture
from .document import BEGIN, END, Document

FOLDER = Path(__file__).resolve().parents[2] / "checkpoints" / "tiny"
VOCABULARY = 2048
PAD = "<｜▁pad▁｜>"
# the order of section 2; the first three open the vocabulary, these close it
CONTROL = (
    "<｜User｜>", "<｜Assistant｜>", "<｜System｜>", "<think>", "</think>", "｜DSML｜",
    "<｜latest_reminder｜>", "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>",
    "<｜title｜>", "<｜read_url｜>", "<｜deepseek_image｜>", "<｜draft▁noise｜>",
)
BEGIN_ID, END_ID, PAD_ID = 0, 1, 2
(USER_ID, ASSISTANT_ID, SYSTEM_ID, THINK_ID, NO_THINK_ID, DSML_ID, *_) = range(
    VOCABULARY - len(CONTROL), VOCABULARY)
IMAGE_ID = VOCABULARY - 2
NOISE_ID = VOCABULARY - 1
CONTROL_IDS = {BEGIN: BEGIN_ID, END: END_ID, PAD: PAD_ID,
               **{text: VOCABULARY - len(CONTROL) + i for i, text in enumerate(CONTROL)}}

# the official pre-tokenizer, but numbers fall into single digits: sums are learned digit by digit
_NUMBERS = r"\p{N}"
_EAST_ASIAN = "[一-龥぀-ゟ゠-ヿ]+"
_WORDS = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
          r"""|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
          r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")

CORPUS_BYTES = 8_000_000
PROSE_BYTES = 2_500_000


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def train(texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE with the ids of section 2 and no normalizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        _split(_NUMBERS), _split(_EAST_ASIAN), _split(_WORDS),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(CONTROL), show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[_added(text) for text in (BEGIN, END, PAD)])
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([_added(text) for text in CONTROL])
    return tokenizer


def _added(text: str) -> AddedToken:
    special = text in (BEGIN, END, PAD, "<｜deepseek_image｜>")
    return AddedToken(text, special=special, normalized=not special)


def load(path: Path | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint folder, `checkpoints/tiny` when none is named."""
    return Tokenizer.from_file(str((path or FOLDER) / "tokenizer.json"))


class Encoder:
    """Encodes documents: control tokens by name, each gap as one piece without added tokens.

    A typed `<think>` inside a gap stays plain text (chat specification 1.2).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        parsed = json.loads(tokenizer.to_str())
        parsed["added_tokens"] = []
        parsed["post_processor"] = None
        self._plain = Tokenizer.from_str(json.dumps(parsed))

    def gaps(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts that hold no control token."""
        found = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        return [entry.ids for entry in found]

    def encode(self, documents: Sequence[Document]) -> tuple[list[int], list[int]]:
        """The ids of all documents one after the other, and 1 where the assistant speaks."""
        pieces = [piece for document in documents for piece in document.pieces]
        gaps = iter(self.gaps([piece.text for piece in pieces if not piece.special]))
        ids: list[int] = []
        target: list[int] = []
        for piece in pieces:
            part = [CONTROL_IDS[piece.text]] if piece.special else next(gaps)
            ids += part
            target += [int(piece.target)] * len(part)
        return ids, target


_ENCODERS: dict[int, tuple[Tokenizer, Encoder]] = {}


def encode(tokenizer: Tokenizer, document: Document) -> tuple[list[int], list[int]]:
    """The ids of one document and its target mask."""
    known = _ENCODERS.get(id(tokenizer))
    if known is None or known[0] is not tokenizer:
        known = _ENCODERS[id(tokenizer)] = (tokenizer, Encoder(tokenizer))
    return known[1].encode([document])


def austen(database: Path) -> str:
    """The six novels out of `Rdata.rdb` of Debian's r-cran-janeaustenr 1.0.0-1.

    The file is a row of blocks: four bytes of length, big-endian, then a zlib stream; each
    string follows the bytes 00 04 00 09 and its length. No R is needed (section 1.1).
    """
    raw = database.read_bytes()
    lines: list[str] = []
    place = 0
    while place + 4 < len(raw):
        decoder = zlib.decompressobj()
        block = decoder.decompress(raw[place + 4:])
        place = len(raw) - len(decoder.unused_data)
        lines += _strings(block)
    return "\n".join(lines)


def _strings(block: bytes) -> Iterator[str]:
    mark = b"\x00\x04\x00\x09"
    place = block.find(mark)
    while place >= 0:
        (size,) = struct.unpack(">i", block[place + 4: place + 8])
        if 0 <= size <= len(block) - place - 8:
            yield block[place + 8: place + 8 + size].decode("utf-8", "replace")
            place += 8 + size
        else:
            place += 4
        place = block.find(mark, place)


def _gaps_of_corpus(seed: int) -> Iterator[str]:
    total = 0
    for document in mixture(seed):
        for piece in document.pieces:
            if not piece.special:
                total += len(piece.text)
                yield piece.text
        if total >= CORPUS_BYTES:
            return


def _paragraphs(text: str) -> Iterator[str]:
    lines = iter(text[:PROSE_BYTES].splitlines())
    while chunk := list(islice(lines, 50)):
        yield "\n".join(chunk)


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json and the tokenizer_config.json that transformers reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {"add_bos_token": False, "add_eos_token": False, "bos_token": BEGIN,
              "clean_up_tokenization_spaces": False, "eos_token": END,
              "model_max_length": 8192, "pad_token": PAD, "unk_token": None,
              "tokenizer_class": "PreTrainedTokenizerFast"}
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Trains on the generator's text and Jane Austen's, and writes the two files."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--austen", type=Path, required=True,
                        help="Rdata.rdb of the Debian package r-cran-janeaustenr")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    novels = austen(options.austen)
    texts = [*_gaps_of_corpus(options.seed), *_paragraphs(novels)]
    tokenizer = train(texts)
    write(tokenizer, options.out)
    print(f"{tokenizer.get_vocab_size()} tokens, novels {len(novels)} letters")


if __name__ == "__main__":
    main()
